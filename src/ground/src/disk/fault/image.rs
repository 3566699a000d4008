//! The model of files and names under the fault disk: what is durable and what is not yet.
//!
//! It owns what a power cut and a failed sync do to one file and to the names. All chance comes
//! from the [`Dice`] it is given.

use super::SECTOR;
use chance::Dice;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// What files are called.
pub(super) type Names = BTreeMap<PathBuf, Arc<Mutex<Node>>>;

/// One file, independent of its names.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) current: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Changes that lead from `durable` to `current`, unless a failed sync lost some.
    pub(super) pending: Vec<Change>,
}

#[derive(Debug)]
pub(super) enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

#[derive(Debug)]
pub(super) enum NameChange {
    Link { path: PathBuf, node: Arc<Mutex<Node>> },
    Rename { from: PathBuf, to: PathBuf, node: Arc<Mutex<Node>> },
    Unlink { path: PathBuf },
}

impl Node {
    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        let change = Change::Write { offset, bytes: bytes.to_vec() };
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    pub(super) fn power_cut(&mut self, random: &mut Dice, style: u64) {
        let mut image = std::mem::take(&mut self.durable);
        for change in std::mem::take(&mut self.pending) {
            let fate = match style {
                0 => 0,
                1 => 1,
                _ => random.below(4),
            };
            match (fate, change) {
                (1, change) => change.apply(&mut image),
                (2 | 3, Change::Write { offset, bytes }) => {
                    tear(&mut image, offset, &bytes, fate == 2, random);
                }
                (_, Change::Write { offset, bytes }) => {
                    // The size may be durable without the bytes.
                    if style > 1 && random.below(4) == 0 {
                        let end = image.len().max(offset + bytes.len());
                        image.resize(end, 0);
                    }
                }
                (_, Change::Size(_)) => {}
            }
        }
        self.current.clone_from(&image);
        self.durable = image;
    }
}

/// Writes some sectors of a write: a random set, or a random number from the front.
fn tear(image: &mut Vec<u8>, offset: usize, bytes: &[u8], any: bool, random: &mut Dice) {
    let end = offset + bytes.len();
    let first = offset / SECTOR;
    let count = end.div_ceil(SECTOR) - first;
    let kept = random.below(count as u64 + 1);
    for number in 0..count {
        let keep = if any { random.below(2) == 0 } else { (number as u64) < kept };
        if keep {
            let from = offset.max((first + number) * SECTOR);
            let to = end.min((first + number + 1) * SECTOR);
            Change::Write { offset: from, bytes: bytes[from - offset..to - offset].to_vec() }
                .apply(image);
        }
    }
}

impl Change {
    pub(super) fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset..end].copy_from_slice(bytes);
            }
            Self::Size(size) => image.resize(*size, 0),
        }
    }
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            Self::Link { path, node } => {
                names.insert(path.clone(), Arc::clone(node));
            }
            Self::Rename { from, to, node } => {
                if names.get(from).is_some_and(|found| Arc::ptr_eq(found, node)) {
                    names.remove(from);
                }
                names.insert(to.clone(), Arc::clone(node));
            }
            Self::Unlink { path } => {
                names.remove(path);
            }
        }
    }

    pub(super) fn each_path(&mut self, mut change: impl FnMut(&mut PathBuf)) {
        match self {
            Self::Link { path, .. } | Self::Unlink { path } => change(path),
            Self::Rename { from, to, .. } => {
                change(from);
                change(to);
            }
        }
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Link { path, .. } | Self::Unlink { path } => path.parent(),
            Self::Rename { to, .. } => to.parent(),
        }
    }
}

/// Whether an error that strikes this often per million strikes now. An error that never strikes
/// draws nothing, so that the other errors of a seed stay where they are.
pub(super) fn strikes(random: &mut Dice, ppm: u32) -> bool {
    ppm > 0 && random.chance_ppm(u64::from(ppm))
}

pub(super) fn lock_node(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().expect("no code panics while it holds a file")
}
