//! Pools and types for tests.

use std::sync::Arc;

use fsm::pool::{DeclaredNode, InstancePool, InstanceType};

/// A type with 1,000 MHz, 1,000 MiB of memory and as much disk.
pub(crate) fn kind(name: &str) -> InstanceType {
    InstanceType {
        name: name.into(),
        provider_type: name.into(),
        cpu: 1_000,
        memory_mb: 1_000,
        disk_mb: 1_000,
        price_micro: 1_000,
        node: DeclaredNode {
            datacenter: "dc1".into(),
            drivers: vec!["mock".into()],
            ..DeclaredNode::default()
        },
        ..InstanceType::default()
    }
}

/// A pool of provider `fake` with one type, `small`.
pub(crate) fn pool(name: &str, max: u32) -> InstancePool {
    let small = kind("small");
    InstancePool {
        name: name.into(),
        provider: "fake".into(),
        min: 0,
        max,
        price_factor_milli: 1_500,
        idle_timeout_ms: 60_000,
        boot_timeout_ms: 600_000,
        probe_timeout_ms: 600_000,
        max_concurrent_creates: 0,
        max_creates_per_hour: 0,
        max_price_micro: 0,
        protect_after: 10,
        backoff_reset_ms: 600_000,
        types: [(small.name.clone(), Arc::new(small))].into(),
        groups: [].into(),
        paused: None,
        create_index: 0,
        modify_index: 0,
    }
}
