package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	startLimit = 60 * time.Second
	stopLimit  = 20 * time.Second
)

var ready = regexp.MustCompile(`^vela is ready: (pulsar://\S+) (http://\S+)`)

// address says where a broker is reached.
type address struct{ url, admin string }

// brokerProcess is a broker of our own. Start and kill may be repeated on one data directory; with fixed ports clients
// find it again.
type brokerProcess struct {
	address
	directory string
	arguments []string
	process   *os.Process
	ended     chan error
}

// vela returns the path of the binary under test. A missing one is an error, not a skip: a suite that tests nothing must
// not be green.
func vela() (string, error) {
	if named := os.Getenv("VELA_BIN"); named != "" {
		if _, err := os.Stat(named); err != nil {
			return "", fmt.Errorf("no broker binary at VELA_BIN=%s: %w", named, err)
		}
		return named, nil
	}
	for _, profile := range []string{"ci", "release", "debug"} {
		path := filepath.Join("..", "..", "target", "x86_64-unknown-linux-gnu", profile, "vela")
		if _, err := os.Stat(path); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", errors.New("no broker binary in target: build it (scripts/test binary), set VELA_BIN, " +
		"or set PULSAR_URL and PULSAR_ADMIN_URL to test a running broker")
}

// newBroker makes a broker that is not started yet; port and webPort 0 let it choose.
func newBroker(port, webPort int, arguments ...string) (*brokerProcess, error) {
	binary, err := vela()
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "vela-go-")
	if err != nil {
		return nil, err
	}
	cores := os.Getenv("VELA_CORES")
	if cores == "" {
		cores = "1"
	}
	command := append([]string{
		binary, "broker", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--web-port", strconv.Itoa(webPort),
		"--data-dir", filepath.Join(directory, "data"), "--cores", cores,
	}, arguments...)
	return &brokerProcess{directory: directory, arguments: command}, nil
}

// freePort returns a port that nothing listens on right now; needed only where a broker must come back on its port.
func freePort() (int, error) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	return probe.Addr().(*net.TCPAddr).Port, nil
}

// start returns when the broker has said on standard output that it accepts connections.
func (b *brokerProcess) start() error {
	log, err := os.OpenFile(b.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(b.arguments[0], b.arguments[1:]...)
	command.Stderr = log
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	// The kernel kills the broker should this test process be killed. It watches the thread that started the broker, so
	// that thread is kept until the broker has ended.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started, ended, line := make(chan error, 1), make(chan error, 1), make(chan string, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		first, _ := bufio.NewReader(output).ReadString('\n')
		line <- first
		ended <- command.Wait()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("%v: %w", b.arguments, err)
	}
	b.process, b.ended = command.Process, ended
	select {
	case first := <-line:
		match := ready.FindStringSubmatch(first)
		if match == nil {
			b.kill()
			return fmt.Errorf("the broker's first line must be 'vela is ready: pulsar://… http://…', it is %q\n%v\n%s", first, b.arguments, b.log())
		}
		b.url, b.admin = match[1], match[2]
		return nil
	case <-time.After(startLimit):
		b.kill()
		return fmt.Errorf("the broker was not ready within %v\n%s", startLimit, b.log())
	}
}

// kill is kill -9: nothing in the process can still write after it returns.
func (b *brokerProcess) kill() {
	if b.process != nil {
		_ = b.process.Kill()
		select {
		case <-b.ended:
		case <-time.After(stopLimit):
		}
		b.process = nil
	}
}

// stop asks the broker to end and says whether it did so in time, with exit code 0.
func (b *brokerProcess) stop() error {
	if b.process == nil {
		return nil
	}
	if err := b.process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("the broker had ended by itself: %w\n%s", err, b.log())
	}
	select {
	case err := <-b.ended:
		b.process = nil
		if err != nil {
			return fmt.Errorf("an orderly stop must end with 0: %w\n%s", err, b.log())
		}
		return nil
	case <-time.After(stopLimit):
		b.kill()
		return fmt.Errorf("the broker did not stop within %v\n%s", stopLimit, b.log())
	}
}

// remove deletes the data directory.
func (b *brokerProcess) remove() { _ = os.RemoveAll(b.directory) }

func (b *brokerProcess) logPath() string { return filepath.Join(b.directory, "broker.log") }

// log returns the end of what the broker wrote to standard error.
func (b *brokerProcess) log() string {
	text, err := os.ReadFile(b.logPath())
	if err != nil {
		return err.Error()
	}
	if len(text) > 4000 {
		text = text[len(text)-4000:]
	}
	return "--- " + b.logPath() + "\n" + string(text)
}
