//! How much memory there is for this process.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory of the smallest control group around this process, or of the machine; 0: cannot be known.
pub(super) fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(machine_memory);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(Path::new("/sys/fs/cgroup"), &groups)
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    machine.into_iter().chain(limits).min().unwrap_or(0)
}

fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where the limits of the groups and of all those around them stand: `memory.max` (version 2) and
/// `memory.limit_in_bytes` (version 1). Inside a container the path of a group may lead nowhere; the root is asked too.
fn limit_files(root: &Path, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (base, name) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| base.join(group).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       24684104 kB\nMemFree: 1 kB\n";
        assert_eq!(machine_memory(text), Some(24_684_104 * 1024));
        assert_eq!(machine_memory("nothing"), None);
    }

    #[test]
    fn every_group_up_to_the_root_is_asked_in_both_versions() {
        let root = Path::new("/r");
        let files = limit_files(root, "5:cpu:/x\n4:memory,hugetlb:/a/b\n0::/c\n");
        let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "/r/memory/a/b/memory.limit_in_bytes",
                "/r/memory/a/memory.limit_in_bytes",
                "/r/memory/memory.limit_in_bytes",
                "/r/c/memory.max",
                "/r/memory.max",
            ]
        );
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory() > 1 << 20);
    }
}
