//! Networks and ports of a group. Only host mode exists; a network that names no port is no
//! network.

use fsm::{
    Text,
    job::{Network, PortAsk},
};

use super::{
    bounded,
    fields::{Fields, Report, quoted},
};
use fsm::limits::NAME_BYTES_MAX;

/// Highest port.
const PORT_MAX: i64 = 65_535;

/// The network of a group; static ports come first.
pub(super) fn read(fields: &mut Fields<'_>, report: &mut Report) -> Option<Network> {
    let path = fields.at("Networks");
    let list = fields.list("Networks", report);
    if list.len() > 1 {
        report.error(path, "a group has one network: put all ports into one block");
    }
    let (path, item) = list.into_iter().next()?;
    let mut fields = Fields::new(item, path, report)?;
    let path = fields.at("Mode");
    let mode = fields.text_filled("Mode", report);
    match mode {
        None | Some("host") => {}
        Some(mode) => {
            let message = format!(
                "network mode {} is not supported yet: use mode \"host\" or run this job elsewhere",
                quoted(mode)
            );
            report.error(path, message);
        }
    }
    for (field, what) in
        [("DNS", "dns blocks are"), ("Hostname", "a hostname is"), ("CNI", "cni blocks are")]
    {
        fields.refuse(field, "network", what, report);
    }
    fields.ignore(&["Device", "CIDR", "IP", "MBits"]);
    let mut ports = Vec::new();
    read_ports(&mut fields, "ReservedPorts", &mut ports, report);
    read_ports(&mut fields, "DynamicPorts", &mut ports, report);
    let ports = bounded(ports, &fields.path, report);
    fields.finish(report);
    (!ports.is_empty()).then_some(Network { ports, names_mode: mode.is_some() })
}

fn read_ports(
    fields: &mut Fields<'_>,
    name: &'static str,
    ports: &mut Vec<PortAsk>,
    report: &mut Report,
) {
    let reserved = name == "ReservedPorts";
    let list = fields.list(name, report);
    for (path, item) in bounded(list, &fields.at(name), report) {
        let Some(mut port) = Fields::new(item, path, report) else { continue };
        let path = port.at("Label");
        let label = port.text("Label", report).unwrap_or_default();
        check_label(label, path.clone(), report);
        if ports.iter().any(|other| &*other.label == label) {
            report.error(path, format!("another port is called {}: rename one", quoted(label)));
        }
        let value = if reserved {
            static_port(&mut port, ports, report)
        } else {
            if port.integer("Value", report).is_some_and(|value| value != 0) {
                let message = "a dynamic port has no value: move it to ReservedPorts";
                report.error(port.at("Value"), message);
            }
            0
        };
        // -1 asks for the same port inside, as 0 does here.
        let to = port.integer_in("To", -1..=PORT_MAX, report).unwrap_or(0).max(0);
        let path = port.at("HostNetwork");
        if let Some(network) = port.text_filled("HostNetwork", report)
            && network != "default"
        {
            let message =
                format!("host network {} is not supported yet: use \"default\"", quoted(network));
            report.error(path, message);
        }
        port.refuse("IgnoreCollision", "port", "ignore_collision is", report);
        port.finish(report);
        ports.push(PortAsk { label: Text::from(label), value, to: u16::try_from(to).unwrap_or(0) });
    }
}

fn static_port(port: &mut Fields<'_>, others: &[PortAsk], report: &mut Report) -> u16 {
    let path = port.at("Value");
    let Some(value) = port.integer("Value", report) else {
        report.error(path, "a static port needs a value from 1 to 65535");
        return 0;
    };
    let Some(value) = u16::try_from(value).ok().filter(|value| *value > 0) else {
        report.error(path, format!("must be between 1 and {PORT_MAX}, is {value}"));
        return 0;
    };
    if others.iter().any(|other| other.value == value) {
        report.error(path, format!("port {value} is reserved twice in this group: remove one"));
    }
    value
}

/// Labels become environment names (`NOMAD_PORT_<label>`).
fn check_label(label: &str, path: String, report: &mut Report) {
    let valid = label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if label.is_empty() || label.len() > NAME_BYTES_MAX || !valid {
        let message = format!(
            "{} is not a port label: use letters, digits, _ and -, at most {NAME_BYTES_MAX}",
            quoted(label)
        );
        report.error(path, message);
    }
}
