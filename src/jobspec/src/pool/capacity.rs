//! The API's JSON of a capacity group and `fsm::capacity::CapacityGroup`, both ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use fsm::{
    Text,
    capacity::{BusyRule, CapacityGroup, GroupDimension, Prediction},
    limits,
};
use serde_json::{Map, Value, json};

use super::values::Reader;
use crate::{FieldError, suggest::did_you_mean};

const GROUP_KEYS: [&str; 17] = [
    "Name",
    "Dimension",
    "Unit",
    "Min",
    "Max",
    "Predictor",
    "Headroom",
    "Peak",
    "Step",
    "StepIntervalMs",
    "DrainMs",
    "Busy",
    "Hard",
    "CooldownUpMs",
    "CooldownDownMs",
    "RequirementTTLms",
    "MemberPort",
];
const PREDICTORS: [&str; 3] = ["identity", "headroom", "peak"];
const STEP: u64 = 20;
const STEP_INTERVAL_MS: u64 = 1_000;
const DRAIN_MS: u64 = 50_000;
const COOLDOWN_DOWN_MS: u64 = 60_000;
const REQUIREMENT_TTL_MS: u64 = 10_000;

/// The settings of a group as JSON.
pub fn capacity_group_json(group: &CapacityGroup) -> Map<String, Value> {
    let value = json!({
        "Name": &*group.name,
        "Dimension": group.dimension.name(),
        "Unit": group.unit,
        "Min": group.min,
        "Max": group.max,
        "Predictor": group.predictor.name(),
        "Step": group.step,
        "StepIntervalMs": group.step_interval_ms,
        "DrainMs": group.drain_ms,
        "Busy": group.busy.name(),
        "Hard": group.hard,
        "CooldownUpMs": group.cooldown_up_ms,
        "CooldownDownMs": group.cooldown_down_ms,
        "RequirementTTLms": group.requirement_ttl_ms,
        "MemberPort": group.member_port,
    });
    let Value::Object(mut object) = value else { unreachable!("an object was just made") };
    match group.predictor {
        Prediction::Identity => {}
        Prediction::Headroom { percent } => {
            object.insert("Headroom".to_owned(), json!({ "Percent": percent }));
        }
        Prediction::Peak { window_ms } => {
            object.insert("Peak".to_owned(), json!({ "WindowMs": window_ms }));
        }
    }
    object
}

/// The groups of a pool's JSON, by name.
pub(super) fn read_groups(
    list: &[Value],
    errors: &mut Vec<FieldError>,
) -> BTreeMap<Text, Arc<CapacityGroup>> {
    let mut groups = BTreeMap::new();
    for (position, value) in list.iter().enumerate() {
        let path = format!("Capacity[{position}]");
        let Some(group) = read_group(value, &path, errors) else { continue };
        let name = group.name.clone();
        if groups.insert(name.clone(), Arc::new(group)).is_some() {
            let message = format!("capacity \"{name}\" is there twice: give each its own name");
            errors.push(FieldError { path, message });
        }
    }
    groups
}

fn read_group(value: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<CapacityGroup> {
    let mut fields = Reader::of(value, path.to_owned(), &GROUP_KEYS, errors)?;
    let (amount, life) = (limits::CAPACITY_AMOUNT_MAX, limits::CAPACITY_MS_MAX);
    let count = u64::from(limits::INSTANCES_MAX);
    let group = CapacityGroup {
        name: fields.required("Name", |fields| fields.text("Name")),
        dimension: word(
            &mut fields,
            "Dimension",
            &GroupDimension::ALL.map(|one| (one.name(), one)),
        ),
        unit: fields.required("Unit", |fields| fields.whole("Unit", 0, (1, amount))),
        min: fields.count("Min", 0, count),
        max: fields.required("Max", |fields| fields.count("Max", 0, count)),
        predictor: read_predictor(&mut fields),
        step: u32::try_from(fields.whole("Step", STEP, (1, count))).unwrap_or(u32::MAX),
        step_interval_ms: fields.whole("StepIntervalMs", STEP_INTERVAL_MS, (1, life)),
        drain_ms: fields.whole("DrainMs", DRAIN_MS, (0, life)),
        busy: word(&mut fields, "Busy", &BusyRule::ALL.map(|one| (one.name(), one))),
        hard: fields.flag("Hard"),
        cooldown_up_ms: fields.whole("CooldownUpMs", 0, (0, life)),
        cooldown_down_ms: fields.whole("CooldownDownMs", COOLDOWN_DOWN_MS, (0, life)),
        requirement_ttl_ms: fields.whole("RequirementTTLms", REQUIREMENT_TTL_MS, (1, life)),
        member_port: fields.required("MemberPort", |fields| {
            let port = fields.whole("MemberPort", 0, (1, u64::from(u16::MAX)));
            u16::try_from(port).unwrap_or(0)
        }),
    };
    if group.min > group.max && fields.value("Max").is_some() {
        fields.error("Min", format!("min ({}) is above max ({})", group.min, group.max));
    }
    if group.hard && group.busy == BusyRule::Deadline {
        fields.error("Hard", "hard needs busy = \"allocations\"");
    }
    if group.dimension == GroupDimension::Instances && group.unit > 1 {
        fields.error("Unit", "unit must be 1 where the dimension is instances");
    }
    Some(group)
}

/// One of some words; the type's default where there is none.
fn word<T: Copy + Default>(
    fields: &mut Reader<'_, '_>,
    name: &str,
    words: &[(&'static str, T)],
) -> T {
    let given = fields.text(name);
    if given.is_empty() {
        return T::default();
    }
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == &*given) {
        return *value;
    }
    let names = words.iter().map(|(word, _)| *word);
    unknown_word(fields, name, &given, names);
    T::default()
}

fn unknown_word(
    fields: &mut Reader<'_, '_>,
    name: &str,
    given: &str,
    names: impl Iterator<Item = &'static str> + Clone,
) {
    let shown: String = given.chars().take(64).collect();
    let hint = did_you_mean(given, names.clone())
        .unwrap_or_else(|| format!("it is one of {}", names.collect::<Vec<_>>().join(", ")));
    fields.error(name, format!("\"{shown}\" is unknown: {hint}"));
}

/// `Predictor` names it, `Headroom` and `Peak` say more; each of the two names it as well.
fn read_predictor(fields: &mut Reader<'_, '_>) -> Prediction {
    let given = fields.text("Predictor");
    if !given.is_empty() && !PREDICTORS.contains(&&*given) {
        unknown_word(fields, "Predictor", &given, PREDICTORS.into_iter());
        return Prediction::Identity;
    }
    let headroom = fields.value("Headroom").map(|value| {
        let most = u64::from(limits::HEADROOM_PERCENT_MAX);
        let percent = read_one(fields, "Headroom", value, "Percent", (0, most));
        Prediction::Headroom { percent: u32::try_from(percent).unwrap_or(u32::MAX) }
    });
    let peak = fields.value("Peak").map(|value| {
        let range = (1, limits::CAPACITY_MS_MAX);
        Prediction::Peak { window_ms: read_one(fields, "Peak", value, "WindowMs", range) }
    });
    let (found, place) = match (headroom, peak) {
        (Some(_), Some(_)) => {
            fields.error("Peak", "headroom and peak in one group: keep one");
            return Prediction::Identity;
        }
        (Some(one), None) => (one, "Headroom"),
        (None, Some(one)) => (one, "Peak"),
        (None, None) => (Prediction::Identity, "Predictor"),
    };
    if !given.is_empty() && &*given != found.name() {
        let message = if found == Prediction::Identity {
            format!("predictor \"{given}\" needs the block that says more: `{given} {{ … }}`")
        } else {
            format!("predictor is \"{given}\": remove it or the block \"{}\"", found.name())
        };
        fields.error(place, message);
    }
    found
}

/// The one number of an object.
fn read_one(
    fields: &mut Reader<'_, '_>,
    object: &str,
    value: &Value,
    name: &'static str,
    range: (u64, u64),
) -> u64 {
    let path = fields.place(object);
    let Some(mut inner) = Reader::of(value, path, &[name], fields.errors) else { return 0 };
    inner.required(name, |inner| inner.whole(name, 0, range))
}
