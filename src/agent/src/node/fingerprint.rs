//! The properties and resources of this machine, under Nomad's attribute names. Read once at start.
//! What cannot be read is left out.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
};

use fsm::job::{SIGNALS, SIGNALS_ATTRIBUTE};

use crate::{machine::usage, node::settings::AgentSettings};

/// Files that may hold an id of the machine: of its board, its system, its boot.
const HOST_IDS: [&str; 3] =
    ["/sys/class/dmi/id/product_uuid", "/etc/machine-id", "/proc/sys/kernel/random/boot_id"];

/// The result of fingerprinting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fingerprint {
    /// Attributes by Nomad's names, without the prefix `attr.`.
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) host_name: String,
    pub(crate) cores: u32,
    pub(crate) cpu_mhz: u64,
    pub(crate) memory_mb: u64,
    pub(crate) disk_mb: u64,
    /// The address at which others reach this machine.
    pub(crate) address: String,
}

/// Examines the machine. Allocations have filled `filled` bytes of the disk at `allocations`; those
/// count as free.
pub(crate) fn fingerprint(
    settings: &AgentSettings,
    (allocations, filled): (&Path, u64),
) -> Fingerprint {
    let system = rustix::system::uname();
    let text = |value: &std::ffi::CStr| value.to_string_lossy().into_owned();
    let cpu = Cpu::parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let memory_bytes = memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let (disk_total, disk_free) = disk_bytes(allocations);
    let address = settings
        .advertise_address
        .clone()
        .unwrap_or_else(|| own_address(&settings.servers).to_string());
    let host_name = text(system.nodename());
    let mut attributes = BTreeMap::new();
    let mut set = |key: &str, value: String| {
        if !value.is_empty() {
            attributes.insert(key.to_owned(), value);
        }
    };
    set("kernel.name", text(system.sysname()).to_lowercase());
    set("kernel.version", text(system.release()));
    set("kernel.arch", text(system.machine()));
    set("arch", architecture(std::env::consts::ARCH).to_owned());
    set("cpu.arch", architecture(std::env::consts::ARCH).to_owned());
    set("cpu.modelname", cpu.model.clone());
    set("cpu.numcores", cpu.cores.to_string());
    set(
        "cpu.frequency",
        (cpu.total_mhz.checked_div(u64::from(cpu.cores)).unwrap_or(0)).to_string(),
    );
    set("cpu.totalcompute", settings.cpu_mhz.unwrap_or(cpu.total_mhz).to_string());
    set(
        "cpu.usablecompute",
        settings
            .cpu_mhz
            .unwrap_or(cpu.total_mhz)
            .saturating_sub(settings.reserved.cpu_mhz)
            .to_string(),
    );
    set("memory.totalbytes", memory_bytes.to_string());
    set("unique.storage.bytestotal", disk_total.to_string());
    set("unique.storage.bytesfree", disk_free.to_string());
    let mounts = usage::mounts();
    if let Some(mount) = usage::mount_of(&mounts, allocations) {
        set("unique.storage.volume", mount.source.clone());
    }
    set("unique.hostname", host_name.clone());
    set("unique.network.ip-address", address.clone());
    let (os_name, os_version) = operating_system(&read("/etc/os-release"), read);
    set("os.name", os_name);
    set("os.version", os_version);
    set(SIGNALS_ATTRIBUTE, SIGNALS.join(","));
    set("unique.host_id", host_id(HOST_IDS.into_iter().map(read)));
    let release = text(system.release());
    set("kernel.landlock", landlock(&read("/sys/kernel/security/lsm"), &release));
    for (key, value) in memory_nodes(Path::new("/sys/devices/system/node")) {
        set(&key, value);
    }
    // Set so that a job which uses Nomad's native services is accepted. docs/from-nomad.md says
    // what happens with its services.
    set("nomad.service_discovery", "true".to_owned());
    set("nomad.version", ground::version::NOMAD.to_owned());
    set("quorate.version", ground::version::QUORATE.to_owned());
    if let Ok(binary) = crate::executor::own_binary() {
        set("unique.quorate.binary", binary.display().to_string());
    }
    Fingerprint {
        attributes,
        host_name,
        cores: cpu.cores,
        cpu_mhz: settings.cpu_mhz.unwrap_or(cpu.total_mhz),
        memory_mb: settings.memory_mb.unwrap_or(memory_bytes >> 20),
        disk_mb: settings.disk_mb.unwrap_or(disk_free.saturating_add(filled) >> 20),
        address,
    }
}

/// The fingerprint of a simulated machine: the same everywhere.
pub(crate) fn simulated(settings: &AgentSettings) -> Fingerprint {
    let cpu_mhz = settings.cpu_mhz.unwrap_or(4_000);
    let attributes = [
        ("kernel.name", "linux".to_owned()),
        ("cpu.totalcompute", cpu_mhz.to_string()),
        ("driver.mock", "1".to_owned()),
        (SIGNALS_ATTRIBUTE, SIGNALS.join(",")),
    ];
    Fingerprint {
        attributes: attributes.map(|(key, value)| (key.to_owned(), value)).into(),
        host_name: settings.name.clone(),
        cores: 4,
        cpu_mhz,
        memory_mb: settings.memory_mb.unwrap_or(4_000),
        disk_mb: settings.disk_mb.unwrap_or(40_000),
        address: settings.advertise_address.clone().unwrap_or_else(|| "10.0.1.1".to_owned()),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Cpu {
    /// Invariant: at least 1.
    cores: u32,
    total_mhz: u64,
    model: String,
}

impl Cpu {
    fn parse(cpuinfo: &str) -> Self {
        let values = |key: &'static str| {
            cpuinfo.lines().filter_map(move |line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim())
            })
        };
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let counted = match values("processor").count() {
            0 => available,
            counted => counted,
        };
        let cores = u32::try_from(counted).unwrap_or(u32::MAX);
        let found: Vec<u64> = values("cpu MHz")
            .filter_map(|mhz| mhz.split('.').next()?.parse().ok())
            .filter(|mhz| *mhz > 0)
            .collect();
        let total_mhz =
            if found.len() == counted { found.iter().sum() } else { u64::from(cores) * 1000 };
        let model = values("model name").next().unwrap_or_default().to_owned();
        Self { cores, total_mhz, model }
    }
}

fn memory_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

fn disk_bytes(path: &Path) -> (u64, u64) {
    rustix::fs::statvfs(path).map_or((0, 0), |stat| {
        (stat.f_frsize.saturating_mul(stat.f_blocks), stat.f_frsize.saturating_mul(stat.f_bavail))
    })
}

/// Reads a short file; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Name and version of the operating system. Some distributions keep the full version in a file of
/// their own: Debian has `12.5` there, and only `12` in `os-release`.
fn operating_system(os_release: &str, read: impl Fn(&str) -> String) -> (String, String) {
    let value = |key: &str| {
        let found = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().trim_matches('"').to_owned()
    };
    let name = value("ID");
    let in_full = match name.as_str() {
        "debian" => read("/etc/debian_version").trim().to_owned(),
        "alpine" => read("/etc/alpine-release").trim().to_owned(),
        "rhel" | "centos" | "rocky" | "almalinux" | "fedora" => {
            let said = read("/etc/redhat-release");
            let rest = said.split_once("release ").map_or("", |(_, rest)| rest);
            rest.split_whitespace().next().unwrap_or_default().to_owned()
        }
        _ => String::new(),
    };
    let version = if in_full.is_empty() { value("VERSION_ID") } else { in_full };
    (name, version)
}

/// The first text that is an id of 16 bytes, formatted as a UUID.
fn host_id(texts: impl Iterator<Item = String>) -> String {
    let mut ids = texts.filter_map(|text| {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        let bytes = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(fsm::NodeId(bytes.to_be_bytes()).to_string())
    });
    ids.next().unwrap_or_default()
}

/// The version of Landlock that the kernel supports, if Landlock is enabled. The exact version
/// takes a system call. The kernel's version implies it, because each Landlock version came with a
/// kernel release.
fn landlock(modules: &str, release: &str) -> String {
    const SINCE: [((u32, u32), u32); 7] = [
        ((6, 15), 7),
        ((6, 12), 6),
        ((6, 10), 5),
        ((6, 7), 4),
        ((6, 2), 3),
        ((5, 19), 2),
        ((5, 13), 1),
    ];
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return String::new();
    };
    let is_on = modules.trim().split(',').any(|name| name == "landlock");
    let found = SINCE.iter().find(|(since, _)| is_on && (major, minor) >= *since);
    found.map_or_else(String::new, |(_, version)| format!("v{version}"))
}

/// The NUMA nodes of the machine, with the cores of each.
fn memory_nodes(directory: &Path) -> Vec<(String, String)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        let cores = fs::read_to_string(entry.path().join("cpulist"));
        if let (Some(number), Ok(cores)) = (number, cores) {
            found.insert(number, cores.trim().to_owned());
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let count = ("numa.node.count".to_owned(), found.len().to_string());
    let cores = found.into_iter().map(|(node, cores)| (format!("numa.node{node}.cores"), cores));
    std::iter::once(count).chain(cores).collect()
}

/// Go's name of an architecture, which job constraints use.
fn architecture(rust_name: &str) -> &str {
    match rust_name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// The local address from which packets to a server would leave. Connecting a UDP socket sends
/// nothing.
fn own_address(servers: &[String]) -> IpAddr {
    let towards = |server: &String| {
        let server = server.split("://").last()?;
        let target: SocketAddr = std::net::ToSocketAddrs::to_socket_addrs(server).ok()?.next()?;
        let any: IpAddr = if target.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    servers.iter().find_map(towards).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_summed_and_guessed_where_nothing_is_said() {
        let text =
            "processor : 0\nmodel name : X\ncpu MHz : 2000.5\nprocessor : 1\ncpu MHz : 2100.9\n";
        let expected = Cpu { cores: 2, total_mhz: 4100, model: "X".to_owned() };
        assert_eq!(Cpu::parse(text), expected);
        let silent = Cpu::parse("processor : 0\nprocessor : 1\n");
        assert_eq!((silent.cores, silent.total_mhz), (2, 2000));
    }

    #[test]
    fn memory_and_system_are_read() {
        assert_eq!(memory_bytes("MemTotal:       1024 kB\nMemFree: 1 kB"), 1 << 20);
    }

    #[test]
    fn a_system_says_its_version_in_full() {
        for (id, file, said, version) in [
            ("debian", "/etc/debian_version", "12.5\n", "12.5"),
            ("debian", "", "", "12"),
            ("alpine", "/etc/alpine-release", "3.20.1\n", "3.20.1"),
            ("rocky", "/etc/redhat-release", "Rocky Linux release 9.3 (Blue Onyx)\n", "9.3"),
            ("ubuntu", "/etc/debian_version", "trixie/sid\n", "12"),
        ] {
            let release = format!("NAME=\"X\"\nID={id}\nVERSION_ID=\"12\"\n");
            let read = |path: &str| if path == file { said.to_owned() } else { String::new() };
            let expected = (id.to_owned(), version.to_owned());
            assert_eq!(operating_system(&release, read), expected, "{said}");
        }
    }

    #[test]
    fn a_machine_is_known_by_the_first_id_that_is_one() {
        let of = |texts: &[&str]| host_id(texts.iter().map(|text| (*text).to_owned()));
        let uuid = "c0ffee00-1111-2222-3333-444455556666";
        assert_eq!(of(&["", "C0FFEE00-1111-2222-3333-444455556666\n"]), uuid);
        assert_eq!(of(&["Not Settable", "c0ffee00111122223333444455556666\n", "x"]), uuid);
        assert_eq!(of(&["", ""]), "");
    }

    #[test]
    fn landlock_is_told_where_it_is_on() {
        for (modules, release, version) in [
            ("capability,landlock,yama", "6.1.0-18-amd64", "v2"),
            ("capability,landlock\n", "5.13.4", "v1"),
            ("landlock", "6.18.5", "v7"),
            ("landlock", "5.10.0", ""),
            ("capability,yama", "6.18.5", ""),
            ("landlock", "", ""),
        ] {
            assert_eq!(landlock(modules, release), version, "{modules} {release}");
        }
    }

    #[test]
    fn memory_nodes_are_counted_with_their_cores() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, cores) in [("node0", "0-3\n"), ("node1", "4-7\n"), ("power", "x")] {
            let node = directory.path().join(name);
            fs::create_dir(&node).expect("a directory");
            fs::write(node.join("cpulist"), cores).expect("a file");
        }
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let expected =
            [("numa.node.count", "2"), ("numa.node0.cores", "0-3"), ("numa.node1.cores", "4-7")];
        assert_eq!(memory_nodes(directory.path()), expected.map(pair));
        assert!(memory_nodes(&directory.path().join("none")).is_empty());
    }
}
