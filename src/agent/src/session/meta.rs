//! The node's metadata: what the configuration says, overridden by what operators have set at run
//! time. That survives a restart.
//!
//! A change is stored durably before anybody sees it. The node then registers again with it.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use ground::rt::watch;

use crate::machine::files;

/// How many keys a node may have, including those set at run time.
const KEYS_MAX: usize = 1_000;
/// Longest key or value, bytes. Servers accept no more.
const TEXT_BYTES_MAX: usize = 4_096;

/// Keys set at run time; `None` removes a configured key.
pub type Changes = BTreeMap<String, Option<String>>;

/// Why a change of metadata is refused.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    #[error("{0}")]
    Invalid(String),
    #[error("cannot store the node's metadata: {0}")]
    Io(#[from] io::Error),
}

/// Metadata of this node.
#[derive(Debug, Default)]
pub struct NodeMeta {
    /// The file that keeps changes. `None`: a simulated node, which accepts none.
    file: Option<PathBuf>,
    configured: BTreeMap<String, String>,
    set: watch::Sender<Changes>,
    /// Held while a change is stored, so that changes are made one after the other.
    storing: Mutex<()>,
}

impl NodeMeta {
    /// The metadata of a node that accepts no changes.
    pub(crate) fn fixed(configured: BTreeMap<String, String>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// The configured metadata, with the changes in `file`.
    pub(crate) fn open(configured: BTreeMap<String, String>, file: PathBuf) -> io::Result<Self> {
        let set = files::read_json(&file)?.unwrap_or_default();
        let set = watch::Sender::new(set);
        Ok(Self { file: Some(file), configured, set, storing: Mutex::default() })
    }

    /// The configured metadata.
    pub fn configured(&self) -> &BTreeMap<String, String> {
        &self.configured
    }

    /// The changes made at run time.
    pub fn changes(&self) -> Changes {
        self.set.borrow().clone()
    }

    /// The metadata in effect: configured and changed.
    pub fn effective(&self) -> BTreeMap<String, String> {
        let mut all = self.configured.clone();
        for (key, value) in &*self.set.borrow() {
            match value {
                Some(value) => drop(all.insert(key.clone(), value.clone())),
                None => drop(all.remove(key)),
            }
        }
        all
    }

    /// Subscribes to changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Changes> {
        self.set.subscribe()
    }

    /// Sets keys, and removes those without a value. Blocks until that is durable.
    pub fn apply(&self, changes: Changes) -> Result<(), MetaError> {
        let _storing = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut set = self.changes();
        for (key, value) in changes {
            check(&key, value.as_deref())?;
            if value.is_some() || self.configured.contains_key(&key) {
                set.insert(key, value);
            } else {
                set.remove(&key);
            }
        }
        if set.len().saturating_add(self.configured.len()) > KEYS_MAX {
            let text = format!("a node has at most {KEYS_MAX} keys of metadata");
            return Err(MetaError::Invalid(text));
        }
        if let Some(file) = &self.file {
            files::write_json(file, &set)?;
        }
        self.set.send_if_modified(|old| {
            let is_new = *old != set;
            *old = set;
            is_new
        });
        Ok(())
    }
}

fn check(key: &str, value: Option<&str>) -> Result<(), MetaError> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    if key.is_empty() || !key.chars().all(letters) {
        let text = format!("invalid metadata key {key:?}: letters, digits and _ - . / only");
        return Err(MetaError::Invalid(text));
    }
    if key.len() > TEXT_BYTES_MAX || value.is_some_and(|value| value.len() > TEXT_BYTES_MAX) {
        let text = format!("a key or value of metadata has at most {TEXT_BYTES_MAX} bytes");
        return Err(MetaError::Invalid(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn metadata_that_was_set_goes_over_the_configuration_and_outlives_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("meta.json");
        let configured = BTreeMap::from([("rack".to_owned(), "r1".to_owned())]);
        let meta = NodeMeta::open(configured.clone(), file.clone()).unwrap();
        let mut seen = meta.subscribe();
        let set = |key: &str, value: Option<&str>| {
            Changes::from([(key.to_owned(), value.map(str::to_owned))])
        };
        meta.apply(set("rack", Some("r2"))).unwrap();
        meta.apply(set("role", Some("web"))).unwrap();
        assert!(seen.has_changed().unwrap());
        seen.mark_unchanged();
        meta.apply(set("role", Some("web"))).unwrap();
        assert!(!seen.has_changed().unwrap(), "nothing new");
        let meta = NodeMeta::open(configured, file).unwrap();
        let shown = |meta: &NodeMeta| format!("{:?}", meta.effective());
        assert_eq!(shown(&meta), r#"{"rack": "r2", "role": "web"}"#);
        meta.apply(set("rack", None)).unwrap();
        meta.apply(set("role", None)).unwrap();
        assert_eq!(shown(&meta), "{}");
        assert_eq!(meta.changes(), set("rack", None), "what was never configured is forgotten");
        assert_eq!(meta.configured().len(), 1);
        for bad in ["", "a b", "ä"] {
            assert!(matches!(meta.apply(set(bad, Some("x"))), Err(MetaError::Invalid(_))), "{bad}");
        }
        let many = (0..=KEYS_MAX).map(|n| (format!("k{n}"), Some(String::new()))).collect();
        assert!(meta.apply(many).is_err());
    }
}
