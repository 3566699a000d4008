//! The API's JSON of an instance pool and `fsm::InstancePool`, both ways. Each error names the JSON
//! path that it is about. What the numbers mean together is the state machine's to say
//! ([`InstancePool::check`]); nothing is rounded in silence.

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    Text, limits,
    pool::{DeclaredNode, InstancePool, InstanceType},
};
use serde_json::{Map, Value, json};

use super::capacity::{capacity_group_json, read_groups};
use crate::{FieldError, suggest::did_you_mean};

const POOL_KEYS: [&str; 20] = [
    "Name",
    "Provider",
    "Min",
    "Max",
    "PriceFactor",
    "IdleTimeoutMs",
    "BootTimeoutMs",
    "ProbeTimeoutMs",
    "MaxConcurrentCreates",
    "MaxCreatesPerHour",
    "MaxPricePerHour",
    "ProtectAfter",
    "BackoffResetMs",
    "Types",
    "Capacity",
    // What the servers say of a pool; they are not read, so that an answer can be sent back.
    "Paused",
    "Counts",
    "Waits",
    "CreateIndex",
    "ModifyIndex",
];
const TYPE_KEYS: [&str; 11] = [
    "Name",
    "ProviderType",
    "CPU",
    "MemoryMB",
    "DiskMB",
    "MaxAllocations",
    "Price",
    "Preemptible",
    "QuotaGroup",
    "Image",
    "Node",
];
const NODE_KEYS: [&str; 5] = ["Datacenter", "Class", "Drivers", "Attributes", "Meta"];
const DATACENTER_DEFAULT: &str = "dc1";
/// Thousandths, and the default.
const PRICE_FACTOR_MILLI: u32 = 1_500;
const IDLE_TIMEOUT_MS: u64 = 60_000;
const BOOT_TIMEOUT_MS: u64 = 600_000;
const PROBE_TIMEOUT_MS: u64 = 600_000;
const PROTECT_AFTER: u64 = 10;
const BACKOFF_RESET_MS: u64 = 600_000;
/// Creates of an hour for each instance that a pool may have, and the least: what churns turns over
/// faster than this only when something is wrong.
const CREATES_PER_INSTANCE: u64 = 10;
const CREATES_PER_HOUR_MIN: u64 = 100;

/// The pool that the JSON is about, checked; or everything that is wrong with it. `name` is used
/// where the JSON has none.
pub fn instance_pool_of(value: &Value, name: &str) -> Result<InstancePool, Vec<FieldError>> {
    let mut errors = Vec::new();
    let pool = read_pool(value, name, &mut errors);
    match pool {
        Some(pool) if errors.is_empty() => match pool.check() {
            Ok(()) => Ok(pool),
            Err(message) => Err(vec![FieldError { path: String::new(), message }]),
        },
        Some(_) | None => Err(errors),
    }
}

/// The settings of a pool as JSON.
pub fn instance_pool_json(pool: &InstancePool) -> Map<String, Value> {
    let types: Vec<Value> = pool.types.values().map(|kind| type_json(kind)).collect();
    let groups: Vec<Value> =
        pool.groups.values().map(|group| capacity_group_json(group).into()).collect();
    let value = json!({
        "Name": &*pool.name,
        "Provider": &*pool.provider,
        "Min": pool.min,
        "Max": pool.max,
        "PriceFactor": decimal(u64::from(pool.price_factor_milli), 1_000),
        "IdleTimeoutMs": pool.idle_timeout_ms,
        "BootTimeoutMs": pool.boot_timeout_ms,
        "ProbeTimeoutMs": pool.probe_timeout_ms,
        "MaxConcurrentCreates": pool.max_concurrent_creates,
        "MaxCreatesPerHour": pool.max_creates_per_hour,
        "MaxPricePerHour": price_json(pool.max_price_micro),
        "ProtectAfter": pool.protect_after,
        "BackoffResetMs": pool.backoff_reset_ms,
        "Types": types,
        "Capacity": groups,
    });
    let Value::Object(object) = value else { unreachable!("an object was just made") };
    object
}

/// The price of an hour.
pub fn price_json(price_micro: u64) -> Value {
    decimal(price_micro, 1_000_000)
}

fn type_json(kind: &InstanceType) -> Value {
    let node = &kind.node;
    let map = |map: &BTreeMap<Text, Text>| -> Map<String, Value> {
        map.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect()
    };
    let drivers: Vec<&str> = node.drivers.iter().map(|name| &**name).collect();
    json!({
        "Name": &*kind.name,
        "ProviderType": &*kind.provider_type,
        "CPU": kind.cpu,
        "MemoryMB": kind.memory_mb,
        "DiskMB": kind.disk_mb,
        "MaxAllocations": kind.max_allocations,
        "Price": price_json(kind.price_micro),
        "Preemptible": kind.preemptible,
        "QuotaGroup": &*kind.quota_group,
        "Image": &*kind.image,
        "Node": {
            "Datacenter": &*node.datacenter,
            "Class": &*node.class,
            "Drivers": drivers,
            "Attributes": map(&node.attributes),
            "Meta": map(&node.meta),
        },
    })
}

/// `count / scale` as a JSON number. Counts are below 2^53, so that nothing is lost.
#[expect(clippy::cast_precision_loss, reason = "a price and a factor are below 2^53")]
fn decimal(count: u64, scale: u32) -> Value {
    Value::from(count as f64 / f64::from(scale))
}

fn read_pool(value: &Value, name: &str, errors: &mut Vec<FieldError>) -> Option<InstancePool> {
    let mut fields = Reader::of(value, String::new(), &POOL_KEYS, errors)?;
    let life = limits::NODE_LIFE_MS_MAX;
    let count_max = u64::from(limits::INSTANCES_MAX);
    let given = fields.text("Name");
    let pool = InstancePool {
        name: if given.is_empty() { name.into() } else { given },
        provider: fields.required("Provider", |fields| fields.text("Provider")),
        min: fields.count("Min", 0, count_max),
        max: fields.required("Max", |fields| fields.count("Max", 0, count_max)),
        price_factor_milli: u32::try_from(fields.scaled(
            "PriceFactor",
            1_000,
            u64::from(PRICE_FACTOR_MILLI),
            (1_000, 1_000_000),
        ))
        .unwrap_or(u32::MAX),
        idle_timeout_ms: fields.whole("IdleTimeoutMs", IDLE_TIMEOUT_MS, (1, life)),
        boot_timeout_ms: fields.whole("BootTimeoutMs", BOOT_TIMEOUT_MS, (1, life)),
        probe_timeout_ms: fields.whole("ProbeTimeoutMs", PROBE_TIMEOUT_MS, (1, life)),
        max_concurrent_creates: fields.count("MaxConcurrentCreates", 0, count_max),
        max_creates_per_hour: 0,
        max_price_micro: fields.scaled(
            "MaxPricePerHour",
            1_000_000,
            0,
            (0, limits::INSTANCE_SIZE_MAX),
        ),
        protect_after: fields.count("ProtectAfter", PROTECT_AFTER, count_max),
        backoff_reset_ms: fields.whole("BackoffResetMs", BACKOFF_RESET_MS, (1, life)),
        types: BTreeMap::new(),
        groups: BTreeMap::new(),
        paused: None,
        create_index: 0,
        modify_index: 0,
    };
    let creates = u64::from(pool.max).saturating_mul(CREATES_PER_INSTANCE);
    let creates = creates.max(CREATES_PER_HOUR_MIN);
    let creates_max = u64::from(limits::CREATES_PER_HOUR_MAX);
    let max_creates_per_hour = fields.count("MaxCreatesPerHour", creates, creates_max);
    if pool.min > pool.max && fields.errors.is_empty() {
        fields.error("Min", format!("min ({}) is above max ({})", pool.min, pool.max));
    }
    let list = fields.list("Types");
    if list.is_empty() {
        let message = "a pool needs at least one type of machine: `type \"small\" { … }`";
        fields.error("Types", message);
    }
    let mut types = BTreeMap::new();
    for (position, value) in list.iter().enumerate() {
        let path = format!("Types[{position}]");
        let Some(kind) = read_type(value, &path, fields.errors) else { continue };
        let name = kind.name.clone();
        if types.insert(name.clone(), Arc::new(kind)).is_some() {
            let message = format!("type \"{name}\" is there twice: give each its own name");
            fields.errors.push(FieldError { path, message });
        }
    }
    let groups = read_groups(&fields.list("Capacity"), fields.errors);
    Some(InstancePool { max_creates_per_hour, types, groups, ..pool })
}

fn read_type(value: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<InstanceType> {
    let mut fields = Reader::of(value, path.to_owned(), &TYPE_KEYS, errors)?;
    let max = limits::INSTANCE_SIZE_MAX;
    let name = fields.required("Name", |fields| fields.text("Name"));
    let provider_type = fields.text("ProviderType");
    let mut kind = InstanceType {
        provider_type: if provider_type.is_empty() { name.clone() } else { provider_type },
        name,
        cpu: fields.required("CPU", |fields| fields.whole("CPU", 0, (1, max))),
        memory_mb: fields.required("MemoryMB", |fields| fields.whole("MemoryMB", 0, (1, max))),
        disk_mb: fields.whole("DiskMB", 0, (0, max)),
        max_allocations: fields.count("MaxAllocations", 0, u64::from(u32::MAX)),
        price_micro: fields.scaled("Price", 1_000_000, 0, (0, max)),
        preemptible: fields.flag("Preemptible"),
        quota_group: fields.text("QuotaGroup"),
        image: fields.text("Image"),
        node: DeclaredNode { datacenter: DATACENTER_DEFAULT.into(), ..DeclaredNode::default() },
    };
    if let Some(value) = fields.value("Node") {
        let path = fields.place("Node");
        kind.node = read_node(value, path, fields.errors)?;
    }
    Some(kind)
}

fn read_node(value: &Value, path: String, errors: &mut Vec<FieldError>) -> Option<DeclaredNode> {
    let mut fields = Reader::of(value, path, &NODE_KEYS, errors)?;
    let datacenter = fields.text("Datacenter");
    Some(DeclaredNode {
        datacenter: if datacenter.is_empty() { DATACENTER_DEFAULT.into() } else { datacenter },
        class: fields.text("Class"),
        drivers: fields.texts("Drivers"),
        attributes: fields.text_map("Attributes"),
        meta: fields.text_map("Meta"),
    })
}

/// One object, and where its errors go. Names match without regard to case, null is absent, as in
/// the rest of the API.
pub(super) struct Reader<'a, 'e> {
    object: &'a Map<String, Value>,
    path: String,
    pub(super) errors: &'e mut Vec<FieldError>,
}

impl<'a, 'e> Reader<'a, 'e> {
    pub(super) fn of(
        value: &'a Value,
        path: String,
        keys: &[&'static str],
        errors: &'e mut Vec<FieldError>,
    ) -> Option<Self> {
        let Value::Object(object) = value else {
            let message = format!("expected an object, found {}", kind_of(value));
            errors.push(FieldError { path, message });
            return None;
        };
        let mut fields = Self { object, path, errors };
        for asked in object.keys() {
            if !keys.iter().any(|key| key.eq_ignore_ascii_case(asked)) {
                let hint = did_you_mean(asked, keys.iter().copied());
                let hint = hint.map_or_else(String::new, |hint| format!(": {hint}"));
                let shown: String = asked.chars().take(64).collect();
                fields.error(&shown, format!("unknown key{hint}"));
            }
        }
        Some(fields)
    }

    pub(super) fn place(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn error(&mut self, name: &str, message: impl Into<String>) {
        let path = self.place(name);
        self.errors.push(FieldError { path, message: message.into() });
    }

    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        let found = self.object.get(name).or_else(|| {
            let same = |(key, _): &(&'a String, &'a Value)| key.eq_ignore_ascii_case(name);
            self.object.iter().find(same).map(|(_, value)| value)
        })?;
        (!found.is_null()).then_some(found)
    }

    /// Reads a field that must be there.
    pub(super) fn required<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let is_empty = |value: &Value| value.as_str().is_some_and(str::is_empty);
        if self.value(name).is_none_or(is_empty) {
            self.error(name, "is required");
        }
        read(self)
    }

    fn typed<T: Default>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> T {
        let Some(value) = self.value(name) else { return T::default() };
        read(value).unwrap_or_else(|| {
            self.error(name, format!("expected {expected}, found {}", kind_of(value)));
            T::default()
        })
    }

    pub(super) fn text(&mut self, name: &str) -> Text {
        let text = self.typed(name, "a text", |value| value.as_str().map(str::to_owned));
        if text.len() > limits::NAME_BYTES_MAX {
            let max = limits::NAME_BYTES_MAX;
            self.error(name, format!("{} bytes, at most {max} may be", text.len()));
        }
        text.into()
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(super) fn whole(&mut self, name: &str, default: u64, (min, max): (u64, u64)) -> u64 {
        let expected = "a whole number that is not negative";
        let number = self.typed(name, expected, |value| value.as_u64().map(Some));
        let Some(number) = number else { return default };
        if !(min..=max).contains(&number) {
            self.error(name, format!("{number} is out of range: from {min} to {max}"));
        }
        number
    }

    pub(super) fn count(&mut self, name: &str, default: u64, max: u64) -> u32 {
        u32::try_from(self.whole(name, default, (0, max))).unwrap_or(u32::MAX)
    }

    /// A number with a fraction, in parts of `1 / scale`.
    fn scaled(&mut self, name: &str, scale: u32, default: u64, range: (u64, u64)) -> u64 {
        let number = self.typed(name, "a number", |value| value.as_f64().map(Some));
        let Some(number) = number else { return default };
        let scaled = number * f64::from(scale);
        let whole = scaled.round();
        if (scaled - whole).abs() > 1e-3 {
            self.error(name, format!("{number} has parts that are smaller than 1/{scale}"));
        }
        #[expect(clippy::cast_precision_loss, reason = "the bounds are below 2^53")]
        let (min, max) = (range.0 as f64, range.1 as f64);
        if !(min..=max).contains(&whole) {
            let (min, max) = (min / f64::from(scale), max / f64::from(scale));
            self.error(name, format!("{number} is out of range: from {min} to {max}"));
            return default;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and within bounds that are not negative and below 2^53"
        )]
        let parts = whole as u64;
        parts
    }

    fn list(&mut self, name: &str) -> Vec<Value> {
        self.typed(name, "a list", |value| value.as_array().cloned())
    }

    fn texts(&mut self, name: &str) -> Vec<Text> {
        self.typed(name, "a list of texts", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(Text::from)).collect()
        })
    }

    fn text_map(&mut self, name: &str) -> BTreeMap<Text, Text> {
        self.typed(name, "an object of texts", |value| {
            let pair = |(key, value): (&String, &Value)| {
                Some((Text::from(key.as_str()), Text::from(value.as_str()?)))
            };
            value.as_object()?.iter().map(pair).collect()
        })
    }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => {
            format!("the text \"{}\"", text.chars().take(40).collect::<String>())
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
