//! What machines and tasks use, as their agents say: sections of `node status` and `alloc status`.

use serde_json::Value;

use super::context::Context;
use super::output::{readable_bytes, table};
use super::view::Fields;

/// A section about a node's machine; why there is none if its agent does not say.
pub(super) fn of_node(context: &Context, node: &Value) -> String {
    let title = "Host Resource Utilization";
    match context.client.get("/v1/client/stats", &[("node_id", node.text("ID"))]) {
        Ok(stats) => format!("{title}\n{}", host(&stats)),
        Err(error) => format!("{title}\nnot known: {error}"),
    }
}

fn host(stats: &Value) -> String {
    let size = |of: &Value, field: &str| readable_bytes(of.number(field));
    let empty = Value::Null;
    let memory = stats.get("Memory").unwrap_or(&empty);
    let folder = stats.get("AllocDirStats").unwrap_or(&empty);
    let mhz = stats.get("CPUTicksConsumed").and_then(Value::as_f64).unwrap_or_default();
    let row = vec![
        format!("{mhz:.0} MHz"),
        format!("{}/{}", size(memory, "Used"), size(memory, "Total")),
        format!("{}/{}", size(folder, "Used"), size(folder, "Size")),
    ];
    let percent = |of: &Value, field: &str| {
        format!("{:.1} %", of.get(field).and_then(Value::as_f64).unwrap_or_default())
    };
    let cores: Vec<Vec<String>> = stats
        .items("CPU")
        .iter()
        .map(|core| {
            let shares = ["User", "System", "Idle"].map(|field| percent(core, field));
            [vec![core.shown("CPU")], shares.to_vec()].concat()
        })
        .collect();
    let disks: Vec<Vec<String>> = stats
        .items("DiskStats")
        .iter()
        .map(|disk| {
            vec![
                disk.shown("Device"),
                disk.shown("Mountpoint"),
                size(disk, "Size"),
                size(disk, "Used"),
                size(disk, "Available"),
                percent(disk, "UsedPercent"),
                percent(disk, "InodesUsedPercent"),
            ]
        })
        .collect();
    let mut text = table(&["CPU", "Memory", "Allocations' Disk"], &[row]);
    text.push_str("\n\nCPU Stats\n");
    text.push_str(&table(&["CPU", "User", "System", "Idle"], &cores));
    if !disks.is_empty() {
        let heads = ["Device", "Mounted At", "Size", "Used", "Available", "Used %", "Inodes %"];
        text.push_str("\n\nDisk Stats\n");
        text.push_str(&table(&heads, &disks));
    }
    text
}

/// A section about the tasks of an allocation that run.
pub(super) fn of_allocation(context: &Context, id: &str) -> String {
    let title = "Resource Utilization";
    let path = format!("/v1/client/allocation/{id}/stats");
    let stats = match context.client.get(&path, &[]) {
        Ok(stats) => stats,
        Err(error) => return format!("{title}\nnot known: {error}"),
    };
    let lines: Vec<Vec<String>> = stats
        .entries("Tasks")
        .into_iter()
        .map(|(task, used)| {
            let used = used.get("ResourceUsage");
            let cpu = used.and_then(|used| used.get("CpuStats"));
            let number =
                |field: &str| cpu.and_then(|cpu| cpu.get(field)?.as_f64()).unwrap_or_default();
            let memory = used.and_then(|used| used.get("MemoryStats"));
            let bytes = |field: &str| memory.map_or(0, |memory| memory.number(field));
            vec![
                task.to_owned(),
                format!("{:.0} MHz", number("TotalTicks")),
                format!("{:.1} %", number("Percent")),
                readable_bytes(bytes("RSS")),
                readable_bytes(bytes("Swap")),
            ]
        })
        .collect();
    if lines.is_empty() {
        return format!("{title}\nno task runs");
    }
    format!("{title}\n{}", table(&["Task", "CPU", "CPU %", "Memory", "Swap"], &lines))
}
