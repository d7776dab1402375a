//! What is checked before anything starts, so that a refusal names its cause.

use super::error::StartError;
use super::raw;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// glommio refuses to work below this, in bytes.
const MEMLOCK_MIN: u64 = 512 * 1024;
/// Registered memory is counted once per ring, and an executor has three.
const RINGS: u64 = 3;
/// Open files that are kept for the broker itself beyond those of its start.
const FILES: u64 = 32;
/// The same for each lane: segments that are written and read, the next ones, checkpoint and manifest.
const FILES_OF_LANE: u64 = 16;

/// The descriptor from which on no connection is kept: what is above stays for the log, which has to go on whoever connects.
/// The system gives out the lowest free number, so a socket that gets a higher one is one too many.
pub(crate) fn connection_descriptors(shards: u32) -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let own = FILES + FILES_OF_LANE * u64::from(shards);
    limit - own.min(limit / 4)
}

/// The CPUs to run on: the first `asked` of those the process may use; 0: all of them.
///
/// # Errors
/// [`StartError::Cores`] if there are not that many.
pub(super) fn cpus(asked: u16) -> Result<Vec<usize>, StartError> {
    let set = rustix::thread::sched_getaffinity(None).map_err(|error| StartError::System {
        what: "cannot read the process's CPU affinity",
        cause: error.into(),
    })?;
    let mut allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect();
    if asked == 0 {
        return Ok(allowed);
    }
    if usize::from(asked) > allowed.len() {
        return Err(StartError::Cores {
            asked,
            allowed: allowed.len(),
        });
    }
    allowed.truncate(usize::from(asked));
    Ok(allowed)
}

/// Whether io_uring may be used.
///
/// # Errors
/// [`StartError::Uring`] with the likely reason and its remedy.
pub(super) fn uring() -> Result<(), StartError> {
    let sysctl = || std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    match raw::probe_ring() {
        Ok(()) => Ok(()),
        Err(error) => Err(uring_refused(error, sysctl().as_deref())),
    }
}

fn uring_refused(error: Errno, sysctl: Option<&str>) -> StartError {
    let sysctl = sysctl.map(str::trim);
    let remedy = match (error, sysctl) {
        (Errno::NOSYS, _) => {
            "The kernel is older than 5.8 or built without io_uring, or a seccomp profile hides it: use a newer kernel, or a profile that allows io_uring_setup, io_uring_enter and io_uring_register".to_owned()
        }
        (Errno::PERM | Errno::ACCESS, Some(value @ ("1" | "2"))) => format!(
            "The sysctl kernel.io_uring_disabled is {value}: set it to 0 (`sysctl -w kernel.io_uring_disabled=0`){}",
            if value == "1" {
                ", or add this user to the group in kernel.io_uring_group"
            } else {
                ""
            }
        ),
        (Errno::PERM | Errno::ACCESS, _) => {
            "A seccomp profile forbids it, as container runtimes do by default: run the container with a profile that allows io_uring_setup, io_uring_enter and io_uring_register (Docker: `--security-opt seccomp=PROFILE.json`)".to_owned()
        }
        (Errno::NOMEM, _) => {
            "Too little lockable memory: raise the limit (`ulimit -l`), or stop other io_uring programs of this user".to_owned()
        }
        (Errno::MFILE | Errno::NFILE, _) => {
            "Too many open files: raise the limit (`ulimit -n`)".to_owned()
        }
        _ => "Vela needs Linux 5.8 or newer with io_uring".to_owned(),
    };
    StartError::Uring {
        cause: std::io::Error::from(error).to_string(),
        remedy,
    }
}

/// Whether enough memory may be locked.
///
/// # Errors
/// [`StartError::Memlock`] with what is needed and what there is.
pub(super) fn memlock(cores: u16, io_memory_kb: u64) -> Result<(), StartError> {
    memlock_within(
        getrlimit(Resource::Memlock).current,
        may_lock_anyhow(),
        cores,
        io_memory_kb,
    )
}

/// CAP_IPC_LOCK: the kernel does not count then, but glommio still looks at the limit.
fn may_lock_anyhow() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::IPC_LOCK)
    })
}

fn memlock_within(
    limit: Option<u64>,
    unlimited: bool,
    cores: u16,
    io_memory_kb: u64,
) -> Result<(), StartError> {
    let Some(present) = limit else {
        return Ok(());
    };
    let registered = u64::from(cores) * RINGS * io_memory_kb * 1024;
    let needed = if unlimited {
        MEMLOCK_MIN
    } else {
        MEMLOCK_MIN.max(registered)
    };
    if present >= needed {
        return Ok(());
    }
    Err(StartError::Memlock {
        present_kb: present / 1024,
        needed_kb: needed.div_ceil(1024),
        needed,
        cores,
        io_memory_kb,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;

    #[test]
    fn the_usual_8_mib_are_enough_for_many_cores_with_the_default() {
        memlock_within(Some(8 << 20), false, 2, 64).unwrap();
        memlock_within(Some(8 << 20), false, 40, 64).unwrap();
        memlock_within(None, false, 1000, 1 << 20).unwrap();
    }

    #[test]
    fn too_little_says_how_much_is_needed_and_how_to_get_it() {
        let error = memlock_within(Some(64 << 10), true, 2, 64)
            .unwrap_err()
            .to_string();
        for part in [
            "64 KiB",
            "512 KiB",
            "ulimit -l 512",
            "LimitMEMLOCK=512K",
            "memlock=524288",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = memlock_within(Some(8 << 20), false, 2, 10240)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("need 61440 KiB") && error.contains("8192 KiB"),
            "{error}"
        );
        memlock_within(Some(8 << 20), true, 2, 10240).unwrap();
    }

    #[test]
    fn every_way_of_denying_io_uring_has_its_remedy() {
        for (error, sysctl, part) in [
            (Errno::NOSYS, None, "seccomp"),
            (Errno::PERM, Some("2\n"), "kernel.io_uring_disabled is 2"),
            (Errno::PERM, Some("1\n"), "kernel.io_uring_group"),
            (Errno::PERM, Some("0\n"), "seccomp profile forbids"),
            (Errno::PERM, None, "seccomp profile forbids"),
            (Errno::NOMEM, None, "ulimit -l"),
        ] {
            let text = uring_refused(error, sysctl).to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn cores_are_the_first_allowed_ones() {
        let all = cpus(0).unwrap();
        assert_eq!(cpus(1).unwrap(), all[..1]);
        let error = cpus(u16::MAX).unwrap_err().to_string();
        assert!(error.contains(&format!("{} CPUs", all.len())), "{error}");
    }
}
