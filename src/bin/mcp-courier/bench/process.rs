//! What this process costs: CPU, memory, sockets. `None` where the system does not say.

use std::collections::HashSet;
use std::time::Duration;

/// CPU time of all threads so far.
#[cfg(unix)]
pub fn cpu() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

/// As on Unix.
#[cfg(not(unix))]
pub fn cpu() -> Option<Duration> {
    None
}

/// Resident bytes.
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Local ports of the TCP sockets that this process holds: so it knows its own lines in `CLIENT LIST`, also on a server
/// that serves others.
pub fn own_ports() -> HashSet<u16> {
    let mut inodes = HashSet::new();
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        let inode = link.to_str().and_then(|l| l.strip_prefix("socket:[")?.strip_suffix(']'));
        inodes.extend(inode.map(str::to_owned));
    }
    let mut ports = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        for line in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(inode)) = (cells.get(1), cells.get(9)) else { continue };
            if inodes.contains(*inode) {
                ports.extend(local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok()));
            }
        }
    }
    ports
}
