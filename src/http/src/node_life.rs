//! `NodeLife` of the scheduler configuration: the names of its settings, shown and read. What
//! values may be is the state machine's to say ([`NodeLife::check`]).

use fsm::{Text, settings::NodeLife};
use serde_json::{Map, Value};

use super::{body::Fields, error::Error};

/// Where the value of a key stands.
enum Place {
    Ms(fn(&mut NodeLife) -> &mut u64),
    Count(fn(&mut NodeLife) -> &mut u32),
    Name(fn(&mut NodeLife) -> &mut Text),
}

const KEYS: [(&str, Place); 12] = [
    ("ReadyDeadlineMs", Place::Ms(|life| &mut life.ready_deadline_ms)),
    ("LostGraceMs", Place::Ms(|life| &mut life.lost_grace_ms)),
    ("TombstoneMs", Place::Ms(|life| &mut life.tombstone_ms)),
    ("SuspendMs", Place::Ms(|life| &mut life.suspend_ms)),
    ("SuspendMaxMs", Place::Ms(|life| &mut life.suspend_ms_max)),
    ("StrikeForgiveMs", Place::Ms(|life| &mut life.strike_forgive_ms)),
    ("StrikeWindowMs", Place::Ms(|life| &mut life.strike_window_ms)),
    ("StrikeFailures", Place::Count(|life| &mut life.strike_failures)),
    ("SuspendedPercentMax", Place::Count(|life| &mut life.suspended_percent_max)),
    ("MassLossPercent", Place::Count(|life| &mut life.mass_loss_percent)),
    ("MassLossNodesMin", Place::Count(|life| &mut life.mass_loss_nodes_min)),
    ("AffinityMetaKey", Place::Name(|life| &mut life.affinity_meta_key)),
];

/// The settings as JSON.
pub(crate) fn shown(life: &NodeLife) -> Value {
    let mut life = life.clone();
    let mut value = |place: &Place| match place {
        Place::Ms(at) => Value::from(*at(&mut life)),
        Place::Count(at) => Value::from(*at(&mut life)),
        Place::Name(at) => Value::from(&**at(&mut life)),
    };
    KEYS.iter()
        .map(|(name, place)| ((*name).to_owned(), value(place)))
        .collect::<Map<_, _>>()
        .into()
}

/// The settings with the changes that a request asks for: keys that it leaves out keep their value.
pub(crate) fn changed(mut life: NodeLife, fields: &Fields<'_>) -> Result<NodeLife, Error> {
    fields.known(&KEYS.map(|(name, _)| name))?;
    for (name, place) in &KEYS {
        match place {
            Place::Ms(at) => {
                if let Some(number) = fields.number(name)? {
                    *at(&mut life) = number;
                }
            }
            Place::Count(at) => {
                if let Some(number) = fields.number(name)? {
                    *at(&mut life) = u32::try_from(number).map_err(|_| {
                        Error::bad(format!("{}: {number} is too large", fields.place(name)))
                    })?;
                }
            }
            Place::Name(at) => {
                if let Some(text) = fields.text(name)? {
                    *at(&mut life) = text.into();
                }
            }
        }
    }
    Ok(life)
}
