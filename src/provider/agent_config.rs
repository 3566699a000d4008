//! The configuration of the agent of a new machine, as far as it is the same wherever the machine
//! is.
//!
//! Invariant: every key is on a line of its own, `section.key = value`, and there is no header of a
//! table: whoever knows the machine adds `data_dir`, which is missing, and other keys behind it.

use elastic::call::Create;
use fsm::InstanceId;
use launch::Settings;

/// Letters of an instance's id in the name of its node.
const NAME_ID_LETTERS: usize = 8;

/// The settings of the agent of a machine that is wanted, all but `data_dir`.
pub(super) fn agent_config(create: &Create, servers: &[String]) -> Settings {
    let kind = &create.kind;
    let id = create.key.to_string();
    let name = format!("{}-{}", create.pool, id.get(..NAME_ID_LETTERS).unwrap_or(&id));
    let mut settings = Settings::default();
    settings.set_text("name", &name);
    settings.set_texts("servers", servers);
    settings.set_text("datacenter", &kind.node.datacenter);
    settings.set_text("node_pool", &create.pool);
    if !kind.node.class.is_empty() {
        settings.set_text("node_class", &kind.node.class);
    }
    settings.set("resources.cpu_mhz", kind.cpu);
    settings.set("resources.memory_mb", kind.memory_mb);
    if kind.disk_mb > 0 {
        settings.set("resources.disk_mb", kind.disk_mb);
    }
    if kind.max_allocations > 0 {
        settings.set("resources.max_allocations", kind.max_allocations);
    }
    for driver in &kind.node.drivers {
        settings.set(&format!("drivers.{driver}"), true);
    }
    if !kind.node.meta.is_empty() {
        let meta = kind.node.meta.iter();
        let meta =
            meta.map(|(key, value)| (key.to_string(), toml::Value::String(value.to_string())));
        settings.set("meta", toml::Value::Table(meta.collect()));
    }
    settings.set_text("instance.id", &id);
    settings.set_text("instance.token", &InstanceId(create.token).to_string());
    settings
}
