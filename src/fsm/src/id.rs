//! Identifiers and scalar types. All ids are 16 bytes and arrive from outside: nothing here makes
//! one up.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// Shared immutable text: names, attribute keys and values.
pub type Text = Arc<str>;
/// A Raft log index; also what `CreateIndex` and `ModifyIndex` hold.
pub type Index = u64;
/// Log time: milliseconds since the Unix epoch as stamped by leaders, never going back.
pub type TimeMs = u64;

/// A 16-byte identifier did not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a UUID (expected 32 hexadecimal digits, with or without dashes)")]
pub struct ParseIdError(pub String);

fn parse_uuid(text: &str) -> Result<[u8; 16], ParseIdError> {
    let bad = || ParseIdError(text.chars().take(64).collect());
    let dashed = text.len() == 36;
    if !dashed && text.len() != 32 {
        return Err(bad());
    }
    let mut out = [0u8; 16];
    let mut digits = 0usize;
    for (position, byte) in text.bytes().enumerate() {
        if dashed && matches!(position, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return Err(bad());
            }
            continue;
        }
        let value = match byte {
            b'0'..=b'9' => byte.wrapping_sub(b'0'),
            b'a'..=b'f' => byte.wrapping_sub(b'a').wrapping_add(10),
            b'A'..=b'F' => byte.wrapping_sub(b'A').wrapping_add(10),
            _ => return Err(bad()),
        };
        let slot = out.get_mut(digits / 2).ok_or_else(bad)?;
        *slot = (*slot << 4) | value;
        digits = digits.wrapping_add(1);
    }
    Ok(out)
}

fn format_uuid(bytes: [u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (position, byte) in bytes.iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// The id in these bytes, when there are exactly 16.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Some(Self(bytes.try_into().ok()?))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format_uuid(self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format_uuid(self.0, f)
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_uuid(text).map(Self)
            }
        }
    };
}

id!(
    /// A node, made with the agent's state directory.
    NodeId
);
id!(
    /// An allocation: one placed instance of a task group.
    AllocationId
);
id!(
    /// An evaluation: one request to bring a job to its desired state.
    EvaluationId
);
id!(
    /// A deployment: the rollout of one version of a job.
    DeploymentId
);
id!(
    /// The scaling policy of a group.
    ScalingPolicyId
);
id!(
    /// An instance: a machine of a pool, from its intent to its end.
    InstanceId
);
id!(
    /// A client's request, for at-most-once effects under retries.
    RequestId
);
id!(
    /// A computed node class: nodes with equal scheduling-relevant, non-unique properties share it.
    ClassId
);

/// A job's name in its namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct JobKey {
    /// Namespace, `default` unless given.
    pub namespace: Text,
    /// Job id, unique in the namespace.
    pub id: Text,
}

impl JobKey {
    /// A key from its two parts.
    pub fn new(namespace: impl Into<Text>, id: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), id: id.into() }
    }

    /// The id of the job that this one is a child of: of `<id>/dispatch-…` and `<id>/periodic-…`.
    /// No other job may have an id of that form.
    pub fn parent(&self) -> Option<&str> {
        let (parent, own) = self.id.rsplit_once('/')?;
        let is_child = own.starts_with("dispatch-") || own.starts_with("periodic-");
        (is_child && !parent.is_empty()).then_some(parent)
    }

    /// The key of the job that [`Self::parent`] names.
    pub fn parent_key(&self) -> Option<Self> {
        Some(Self { namespace: self.namespace.clone(), id: self.parent()?.into() })
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_forms_of_children_have_a_parent() {
        for (id, parent) in [
            ("a/dispatch-1-x", Some("a")),
            ("a/b/periodic-1", Some("a/b")),
            ("a/b", None),
            ("dispatch-1", None),
            ("/dispatch-1", None),
            ("a/dispatch-1/b", None),
        ] {
            assert_eq!(JobKey::new("default", id).parent(), parent, "{id}");
        }
    }

    #[test]
    fn an_id_prints_and_parses_as_a_uuid() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let id: NodeId = text.parse().expect("a valid uuid");
        assert_eq!(id.to_string(), text);
        assert_eq!(text.replace('-', "").parse(), Ok(id));
        for bad in [
            "",
            "0123",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "é1234567-89ab-cdef-0123-456789abcde",
        ] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad} should not parse");
        }
    }
}
