//! Rows beside all commands, as a disk would have them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    codec,
    id::Text,
    settings::Namespace,
    state::State,
    table::{ChangeSet, Row, disk_key},
};

/// Puts a row into a state as a disk would have it, beside all commands. The derived indexes stay
/// as they were until [`State::rebuild_derived`].
pub fn put<R: Row>(state: &mut State, row: &R) {
    let key = disk_key::<R>(&row.key());
    state.load_row(&key, &codec::encode(row)).expect("a row that was encoded loads");
}

/// Gives a namespace a description of any length, beside the bounds of commands: what stores rows
/// must keep long ones too.
pub fn describe_namespace(
    state: &mut State,
    name: &Text,
    description: Text,
    changes: &mut ChangeSet,
) {
    let row = state.namespaces.get(name).expect("the namespace is there");
    let row = Namespace { description, ..(**row).clone() };
    state.namespaces.put(row, changes);
}

/// The state without a row, as another process would load it.
pub fn without<R: Row>(state: &State, key: &R::Key) -> State {
    let gone = disk_key::<R>(key);
    let mut left = State::default();
    for (key, frame) in state.frames().filter(|(key, _)| *key != gone) {
        left.load_row(&key, &frame).expect("a row that was saved loads");
    }
    left.load_done(state.head());
    left
}

/// All rows of a state as they go to disk, in the order of their keys on disk.
pub fn rows(state: &State) -> BTreeMap<Vec<u8>, Bytes> {
    state.frames().collect()
}

/// The state as another process would load it.
pub fn reload(state: &State) -> State {
    let mut loaded = State::default();
    for (key, frame) in state.frames() {
        loaded.load_row(&key, &frame).expect("a row that was saved loads");
    }
    let head = codec::decode(&codec::encode(&state.head())).expect("a head that was saved loads");
    loaded.load_done(head);
    assert_eq!(loaded.digest(), state.digest(), "the loaded state has another digest");
    loaded
}
