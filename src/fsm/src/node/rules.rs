//! The rule by which nodes are alike for a scheduler.

use super::NodeDescription;
use crate::{digest::row_hash, id::ClassId};

/// Hash of everything that feasibility looks at, less keys that begin with `unique.` (Nomad's
/// computed class, GH-24942).
pub fn computed_class(description: &NodeDescription) -> ClassId {
    let mut bytes = Vec::with_capacity(512);
    let mut part = |tag: u8, key: &str, value: &str| {
        for piece in [&[tag][..], key.as_bytes(), value.as_bytes()] {
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(piece);
        }
    };
    part(1, "", &description.datacenter);
    part(2, "", &description.class);
    part(3, "", &description.pool);
    for (tag, map) in [(4, &description.attributes), (5, &description.meta)] {
        for (key, value) in map.iter().filter(|(key, _)| !key.starts_with("unique.")) {
            part(tag, key, value);
        }
    }
    for (name, driver) in &description.drivers {
        part(6, name, if driver.detected && driver.healthy { "1" } else { "0" });
    }
    ClassId(row_hash(&bytes, &[]).to_le_bytes())
}
