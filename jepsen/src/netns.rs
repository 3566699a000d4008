//! Servers in network namespaces of their own, on a bridge, with a packet filter between them. Needs root.
//!
//! ```text
//!  root namespace: harness and clients ── bridge qjPIDb (10.213.N.254)
//!                                          ├── veth ── namespace qjPIDn1 (10.213.N.1) ── server n1
//!                                          └── veth ── namespace qjPIDn2 (10.213.N.2) ── server n2
//! ```
//! A blocked flow from a to b is a rule on what enters b from a: packets are lost without a word (held) or answered with a
//! reset (cut). The harness always reaches every server, also a cut-off one: that is how stale reads are seen. All names carry
//! our process number and are in the ledger; nothing else is touched.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::{
    owned::{Ledger, Thing, run},
    probe::found,
    proxy::Flow,
};

const HTTP_PORT: u16 = 4646;
const RPC_PORT: u16 = 4647;
/// Networks tried until one is free.
const NETWORKS: std::ops::RangeInclusive<u8> = 1..=250;
const TABLE: &str = "quorate_jepsen";

/// The namespaces of one cluster.
pub(crate) struct Namespaces {
    names: Vec<String>,
    network: u8,
    filter: Filter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Nft,
    Iptables,
}

impl Filter {
    /// The one that is used here.
    fn of_this_machine() -> Self {
        if found("nft").is_ok() { Self::Nft } else { Self::Iptables }
    }
}

/// The packet filter that is used here.
pub(crate) fn filter_name() -> &'static str {
    match Filter::of_this_machine() {
        Filter::Nft => "nft",
        Filter::Iptables => "iptables",
    }
}

impl Namespaces {
    /// Makes a bridge and a namespace per server.
    pub(crate) fn create(servers: usize, ledger: &Arc<Mutex<Ledger>>) -> Result<Self> {
        let own = std::process::id();
        let filter = Filter::of_this_machine();
        let bridge = format!("qj{own}b");
        note(ledger, Thing::Link(bridge.clone()))?;
        run("ip", &["link", "add", &bridge, "type", "bridge"])?;
        run("ip", &["link", "set", &bridge, "up"])?;
        let network = claim_network(&bridge)?;
        let mut names = Vec::new();
        for number in 1..=servers {
            let name = format!("qj{own}n{number}");
            let outside = format!("qj{own}v{number}");
            note(ledger, Thing::Namespace(name.clone()))?;
            run("ip", &["netns", "add", &name])?;
            note(ledger, Thing::Link(outside.clone()))?;
            let link =
                ["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &name];
            run("ip", &link)?;
            run("ip", &["link", "set", &outside, "master", &bridge, "up"])?;
            let address = format!("10.213.{network}.{number}/24");
            run("ip", &["-n", &name, "addr", "add", &address, "dev", "eth0"])?;
            run("ip", &["-n", &name, "link", "set", "eth0", "up"])?;
            run("ip", &["-n", &name, "link", "set", "lo", "up"])?;
            names.push(name);
        }
        let namespaces = Self { names, network, filter };
        for server in 0..servers {
            namespaces.rules(server, &[], Flow::Open)?;
        }
        Ok(namespaces)
    }

    /// The name of a server's namespace.
    pub(crate) fn name(&self, server: usize) -> &str {
        &self.names[server]
    }

    /// Where a server's HTTP and RPC are.
    pub(crate) fn addresses(&self, server: usize) -> (SocketAddr, SocketAddr) {
        let address = IpAddr::V4(self.address(server));
        (SocketAddr::new(address, HTTP_PORT), SocketAddr::new(address, RPC_PORT))
    }

    /// Blocks exactly these flows.
    pub(crate) fn block(&self, flows: &[(usize, usize)], how: Flow) -> Result<()> {
        for server in 0..self.names.len() {
            let from: Vec<usize> =
                flows.iter().filter(|(_, to)| *to == server).map(|(from, _)| *from).collect();
            self.rules(server, &from, how)?;
        }
        Ok(())
    }

    /// Packets that the filters took so far, since the last [`Namespaces::block`].
    pub(crate) fn dropped(&self) -> Result<u64> {
        let mut packets = 0;
        for server in 0..self.names.len() {
            let text = match self.filter {
                Filter::Nft => {
                    self.within(server, &["nft", "list", "table", "inet", TABLE], None)?
                }
                Filter::Iptables => {
                    self.within(server, &["iptables", "-w", "-nvxL", "INPUT"], None)?
                }
            };
            packets += count(&text, self.filter);
        }
        Ok(packets)
    }

    fn address(&self, server: usize) -> Ipv4Addr {
        let host = u8::try_from(server + 1).expect("a cluster has at most nine servers");
        Ipv4Addr::new(10, 213, self.network, host)
    }

    /// Replaces the rules of a server: what comes from these is taken.
    fn rules(&self, server: usize, from: &[usize], how: Flow) -> Result<()> {
        if let Flow::Flapping(_) = how {
            bail!("a packet filter does not flap");
        }
        let from: Vec<Ipv4Addr> = from.iter().map(|server| self.address(*server)).collect();
        match self.filter {
            Filter::Nft => {
                let script = nft_script(&from, how);
                self.within(server, &["nft", "-f", "-"], Some(&script)).map(|_| ())
            }
            Filter::Iptables => {
                self.within(server, &["iptables", "-w", "-F", "INPUT"], None)?;
                for address in from {
                    let address = address.to_string();
                    let mut rule = vec!["iptables", "-w", "-A", "INPUT", "-s", &address];
                    match how {
                        Flow::Cut => {
                            let reset = ["-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"];
                            rule.extend(reset);
                        }
                        Flow::Held | Flow::Open | Flow::Flapping(_) => rule.extend(["-j", "DROP"]),
                    }
                    self.within(server, &rule, None)?;
                }
                Ok(())
            }
        }
    }

    /// Runs a program in a server's namespace; returns what it printed.
    fn within(&self, server: usize, program: &[&str], input: Option<&str>) -> Result<String> {
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.names[server]))
            .args(program)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run nsenter")?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(input.as_bytes()).context("cannot write rules")?;
        }
        let output = child.wait_with_output().context("cannot wait for nsenter")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} in {}: {}", program.join(" "), self.names[server], said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn note(ledger: &Arc<Mutex<Ledger>>, thing: Thing) -> Result<()> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner).add(thing)
}

/// Gives the bridge the first network that no interface of this machine has.
fn claim_network(bridge: &str) -> Result<u8> {
    let output =
        Command::new("ip").args(["-o", "-4", "addr", "show"]).output().context("cannot run ip")?;
    let taken = String::from_utf8_lossy(&output.stdout).into_owned();
    let free = NETWORKS.into_iter().find(|number| !taken.contains(&format!(" 10.213.{number}.")));
    let network = free.context("every network 10.213.1.0/24 to 10.213.250.0/24 is in use")?;
    run("ip", &["addr", "add", &format!("10.213.{network}.254/24"), "dev", bridge])?;
    Ok(network)
}

/// One transaction: the table is made if need be, emptied and filled.
fn nft_script(from: &[Ipv4Addr], how: Flow) -> String {
    let mut script = format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n  chain input {{\n    \
         type filter hook input priority 0; policy accept;\n"
    );
    for address in from {
        let verdict = match how {
            Flow::Cut => "meta l4proto tcp counter reject with tcp reset",
            Flow::Held | Flow::Open | Flow::Flapping(_) => "counter drop",
        };
        writeln!(script, "    ip saddr {address} {verdict}")
            .expect("writing to a string cannot fail");
    }
    script.push_str("  }\n}\n");
    script
}

/// The sum of the packets in a listing of rules.
fn count(listing: &str, filter: Filter) -> u64 {
    let lines = listing.lines();
    match filter {
        Filter::Nft => lines
            .filter_map(|line| line.split("counter packets ").nth(1)?.split(' ').next())
            .filter_map(|number| number.parse::<u64>().ok())
            .sum(),
        Filter::Iptables => lines
            .filter(|line| line.contains("DROP") || line.contains("REJECT"))
            .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .sum(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::{fault::Means, probe};

    #[test]
    fn packets_are_counted_in_both_listings() {
        let nft = "table inet x {\n ip saddr 10.0.0.1 counter packets 12 bytes 99 drop\n ip saddr \
                   10.0.0.2 counter packets 3 bytes 9 drop\n}";
        assert_eq!(count(nft, Filter::Nft), 15);
        let iptables = "Chain INPUT (policy ACCEPT 900 packets, 1 bytes)\n    pkts bytes target\n   \
                        7      420 DROP  all\n   2      420 REJECT  tcp\n";
        assert_eq!(count(iptables, Filter::Iptables), 9);
    }

    #[test]
    fn rules_name_every_address_once() {
        let script = nft_script(&[Ipv4Addr::new(10, 213, 1, 2)], Flow::Held);
        assert!(script.contains("ip saddr 10.213.1.2 counter drop\n"), "{script}");
        assert!(nft_script(&[Ipv4Addr::LOCALHOST], Flow::Cut).contains("reject with tcp reset"));
    }

    /// On a machine that can: a blocked server is not reached from its peer's namespace, but from ours it is.
    #[test]
    fn namespaces_cut_peers_but_not_the_harness() {
        if let Err(reason) = probe::can(Means::Namespaces, &probe::Tools::default()) {
            assert!(!reason.is_empty());
            return;
        }
        let store = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(store.path()).unwrap();
        let ledger = Arc::new(Mutex::new(ledger));
        let namespaces = Namespaces::create(2, &ledger).unwrap();
        // The bridge answers for the second server: both see the harness, whatever the rules between them.
        let ping = |from: usize, to: &str| {
            let arguments = ["ping", "-c", "1", "-W", "1", to];
            namespaces.within(from, &arguments, None).is_ok()
        };
        if found("ping").is_err() {
            let harness = TcpListener::bind((Ipv4Addr::new(10, 213, namespaces.network, 254), 0));
            let address = harness.as_ref().unwrap().local_addr().unwrap();
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        } else {
            let second = namespaces.address(1).to_string();
            let harness = format!("10.213.{}.254", namespaces.network);
            assert!(ping(0, &second) && ping(0, &harness));
            namespaces.block(&[(0, 1)], Flow::Held).unwrap();
            assert!(!ping(0, &second) && ping(1, &harness));
            assert!(namespaces.dropped().unwrap() > 0);
            namespaces.block(&[], Flow::Open).unwrap();
            assert!(ping(0, &second));
        }
        let name = namespaces.name(0).to_owned();
        drop(ledger);
        assert!(!std::path::Path::new("/run/netns").join(name).exists());
    }
}
