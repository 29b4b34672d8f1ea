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

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Load average of the last minute: what else the machine does.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Resident bytes.
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Local ports of the TCP sockets that a process holds, this one without a pid: so it is known which lines in
/// `CLIENT LIST` are its own, also on a server that serves others.
pub fn ports(pid: Option<u32>) -> HashSet<u16> {
    let process = pid.map_or("/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
    let mut inodes = HashSet::new();
    for entry in std::fs::read_dir(format!("{process}/fd")).into_iter().flatten().flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        let inode = link.to_str().and_then(|l| l.strip_prefix("socket:[")?.strip_suffix(']'));
        inodes.extend(inode.map(str::to_owned));
    }
    let mut ports = HashSet::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(inode)) = (cells.get(1), cells.get(9)) else { continue };
            if inodes.contains(*inode) {
                ports.extend(local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok()));
            }
        }
    }
    ports
}
