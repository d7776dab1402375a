package conformance;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker: a running one that is only named, or a process of our own. */
class Broker implements AutoCloseable {
    private static final Pattern READY = Pattern.compile("vela is ready: (pulsar://\\S+) (http://\\S+)");
    private static final int START_LIMIT_SECONDS = 60;
    private static final int STOP_LIMIT_SECONDS = 20;
    /** Ends the broker should this JVM end without doing so, and in any case after 15 minutes. */
    private static final String WATCHDOG =
            "n=0; while kill -0 \"$1\" 2>/dev/null && kill -0 \"$2\" 2>/dev/null && [ $n -lt 900 ]; do sleep 1; n=$((n+1)); done; kill -9 \"$2\" 2>/dev/null";

    String url;
    String admin;
    private final Path directory;
    private final List<String> command;
    private Process process;

    private Broker(Path directory, List<String> command) {
        this.directory = directory;
        this.command = command;
    }

    /** A broker that is running already and that nobody here stops. */
    static Broker running(String url, String admin) {
        Broker broker = new Broker(null, null);
        broker.url = url;
        broker.admin = admin.replaceAll("/$", "");
        return broker;
    }

    /** A broker of our own, not started yet; ports 0 let it choose. */
    static Broker own(int port, String... arguments) throws IOException {
        Path directory = Files.createTempDirectory("vela-java-");
        String cores = System.getenv().getOrDefault("VELA_CORES", "1");
        List<String> command = new ArrayList<>(List.of(binary(), "broker", "--bind", "127.0.0.1", "--port", "" + port, "--web-port", "0",
                "--data-dir", directory.resolve("data").toString(), "--cores", cores));
        command.addAll(List.of(arguments));
        return new Broker(directory, command);
    }

    /** The binary under test. A missing one is an error, not a skip: a suite that tests nothing must not be green. */
    private static String binary() {
        String named = System.getenv("VELA_BIN");
        if (named != null && !named.isEmpty()) {
            if (Files.isExecutable(Path.of(named))) {
                return named;
            }
            throw new IllegalStateException("no broker binary at VELA_BIN=" + named);
        }
        for (String profile : List.of("ci", "release", "debug")) {
            Path path = Path.of("../../target/x86_64-unknown-linux-gnu", profile, "vela").toAbsolutePath().normalize();
            if (Files.isExecutable(path)) {
                return path.toString();
            }
        }
        throw new IllegalStateException("no broker binary in target: build it (scripts/test binary), set VELA_BIN, "
                + "or set PULSAR_URL and PULSAR_ADMIN_URL to test a running broker");
    }

    /** A port that nothing listens on right now; needed only where a broker must come back on its port. */
    static int freePort() throws IOException {
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return probe.getLocalPort();
        }
    }

    /** Returns when the broker has said on standard output that it accepts connections. */
    Broker start() throws Exception {
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.appendTo(log().toFile())).start();
        process.getOutputStream().close();
        new ProcessBuilder("sh", "-c", WATCHDOG, "watchdog", "" + ProcessHandle.current().pid(), "" + process.pid())
                .redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        BufferedReader output = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String line;
        try {
            line = CompletableFuture.supplyAsync(() -> {
                try {
                    return output.readLine();
                } catch (IOException error) {
                    return null;
                }
            }, task -> new Thread(task, "first line").start()).get(START_LIMIT_SECONDS, TimeUnit.SECONDS);
        } catch (Exception error) {
            kill();
            throw new IllegalStateException("the broker was not ready within " + START_LIMIT_SECONDS + " s\n" + logged(), error);
        }
        Matcher match = READY.matcher(line == null ? "" : line);
        if (!match.lookingAt()) {
            kill();
            throw new IllegalStateException("the broker's first line must be 'vela is ready: pulsar://… http://…', it is " + line + "\n"
                    + String.join(" ", command) + "\n" + logged());
        }
        url = match.group(1);
        admin = match.group(2);
        return this;
    }

    /** kill -9: nothing in the process can still write after it returns. */
    void kill() throws InterruptedException {
        if (process != null) {
            process.destroyForcibly().waitFor(STOP_LIMIT_SECONDS, TimeUnit.SECONDS);
            process = null;
        }
    }

    /** An orderly stop, which must end with 0; the data is removed after it. */
    @Override
    public void close() throws Exception {
        if (process == null) {
            return;
        }
        process.destroy();
        if (!process.waitFor(STOP_LIMIT_SECONDS, TimeUnit.SECONDS)) {
            kill();
            throw new IllegalStateException("the broker did not stop within " + STOP_LIMIT_SECONDS + " s\n" + logged());
        }
        int code = process.exitValue();
        process = null;
        if (code != 0) {
            throw new IllegalStateException("an orderly stop must end with 0, not with " + code + "\n" + logged());
        }
        remove();
    }

    /** Deletes the data directory. */
    void remove() throws IOException {
        try (var paths = Files.walk(directory)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        }
    }

    private Path log() {
        return directory.resolve("broker.log");
    }

    /** The end of what the broker wrote to standard error. */
    String logged() {
        try {
            List<String> lines = Files.readAllLines(log());
            return "--- " + log() + "\n" + String.join("\n", lines.subList(Math.max(0, lines.size() - 40), lines.size()));
        } catch (IOException error) {
            return error.toString();
        }
    }
}
