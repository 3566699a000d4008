//! The lines of the protocol, between `elastic::call` and JSON. docs/providers.md has every message
//! by example.
//!
//! Unknown fields are ignored, so that either side can be newer. Must never trust a program: what
//! it says is parsed, and has limits.

use elastic::call::{
    Answer, Create, Description, Destroyed, ErrorClass, ErrorScope, Listing, Machine, MachineState,
    Operation, ProviderError, Tags, clip,
};
use fsm::{InstanceId, Text};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::provider::{Context, agent_config::agent_config, with_cluster};

/// The version that a program has to name.
pub(super) const VERSION: u64 = 1;
/// Longest id, address or scope of a machine, bytes: they are kept in the replicated state.
const NAME_BYTES_MAX: usize = 256;
/// Tags of a machine in a list.
const TAGS_MAX: usize = 64;
/// How much of a line is shown in an error, bytes.
const SHOWN_BYTES_MAX: usize = 120;

/// What a program answers a call with, as it stands in the line: only what the call asks for is
/// made of it.
pub(super) type Outcome = Result<Box<RawValue>, Box<RawValue>>;

/// What is clear and not of the protocol: it is taken, and `provider check` warns of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::provider) enum Habit {
    /// A line without anything.
    BlankLine,
    /// A JSON object that goes over several lines.
    SeveralLines,
    /// A field that is `null` where it should not be there.
    Null,
    /// A number in quotes.
    NumberAsText,
}

impl Habit {
    /// For people.
    pub(in crate::provider) const fn words(self) -> &'static str {
        match self {
            Self::BlankLine => "it writes empty lines",
            Self::SeveralLines => "a reply goes over several lines; write each as one",
            Self::Null => "a reply has `result` and `error`, one of them null; leave that out",
            Self::NumberAsText => "a number stands in quotes",
        }
    }
}

/// A number, also in quotes.
fn number(value: &Value) -> Option<(u64, bool)> {
    match value.as_str() {
        Some(text) => Some((text.trim().parse().ok()?, true)),
        None => Some((value.as_u64()?, false)),
    }
}

/// A number that may be in quotes, or missing.
fn lenient<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let value = Value::deserialize(value)?;
    if value.is_null() {
        return Ok(None);
    }
    let found = number(&value).map(|(number, _)| number);
    found.map(Some).ok_or_else(|| D::Error::custom(format!("{value} is no whole number")))
}

/// The name in a program's first line.
pub(super) fn hello(line: &[u8]) -> Result<Text, String> {
    let object: Map<String, Value> = object(line)?;
    let Some(version) = object.get("quorate_provider") else {
        let text = "its first line is not {\"quorate_provider\":1,\"name\":…}";
        return Err(format!("{text}: {}", shown(line)));
    };
    if number(version).map(|(version, _)| version) != Some(VERSION) {
        let text =
            format!("it speaks version {version} of the protocol, and this server {VERSION}");
        return Err(text);
    }
    match object.get("name").and_then(Value::as_str) {
        Some(name) if !name.trim().is_empty() => Ok(clip(name)),
        Some(_) | None => Err(format!("its first line has no name: {}", shown(line))),
    }
}

/// A reply of a program.
pub(super) struct Reply {
    /// Of the call that it answers.
    pub(super) id: u64,
    pub(super) outcome: Outcome,
    pub(super) habits: Vec<Habit>,
}

/// Whether a field is there and says nothing.
fn is_null(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get().trim() == "null")
}

/// The reply that a line is. An error: the program does not keep to the protocol.
pub(super) fn reply(line: &[u8]) -> Result<Reply, String> {
    let ReplyLine { id, mut result, mut error } = object(line)?;
    let found = id.and_then(|id| number(&serde_json::from_str(id.get()).ok()?));
    let Some((id, is_text)) = found else {
        return Err(format!("a line on its standard output has no id of a call: {}", shown(line)));
    };
    let mut habits = Vec::new();
    if result.is_some() && is_null(error.as_deref()) {
        error = None;
        habits.push(Habit::Null);
    } else if error.is_some() && is_null(result.as_deref()) {
        result = None;
        habits.push(Habit::Null);
    }
    if is_text || error.as_deref().is_some_and(has_number_as_text) {
        habits.push(Habit::NumberAsText);
    }
    match (result, error) {
        (Some(result), None) => Ok(Reply { id, outcome: Ok(result), habits }),
        (None, Some(error)) => Ok(Reply { id, outcome: Err(error), habits }),
        (Some(_), Some(_)) => Err(format!("its reply {id} has a result and an error")),
        (None, None) => Err(format!("its reply {id} has neither a result nor an error")),
    }
}

fn has_number_as_text(error: &RawValue) -> bool {
    let error: Option<Value> = serde_json::from_str(error.get()).ok();
    error.is_some_and(|error| error.get("retry_after_ms").is_some_and(Value::is_string))
}

#[derive(Deserialize)]
struct ReplyLine {
    #[serde(default, deserialize_with = "present")]
    id: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    error: Option<Box<RawValue>>,
}

/// A `null` that is there is a value.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(value).map(Some)
}

fn object<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    let parsed = serde_json::from_slice(line).ok();
    let parsed = parsed.filter(|_| line.trim_ascii_start().starts_with(b"{"));
    parsed.ok_or_else(|| {
        format!("a line on its standard output is not a JSON object: {}", shown(line))
    })
}

/// The beginning of a line, for an error.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    let more = if end < text.len() { "…" } else { "" };
    let printable = text[..end].replace(char::is_control, " ");
    format!("`{printable}{more}`")
}

/// The line of a call, without its end.
pub(super) fn request(id: u64, operation: &Operation, context: &Context) -> String {
    let machine = |instance: &InstanceId, provider_id: &Text| json!({ "instance": instance.to_string(), "provider_id": &**provider_id });
    let mut line = match operation {
        Operation::Create(create) => creation(create, context),
        Operation::List => json!({}),
        Operation::Destroy { instance, provider_id }
        | Operation::Describe { instance, provider_id } => machine(instance, provider_id),
        Operation::SetTags { instance, provider_id, tags } => {
            let mut line = machine(instance, provider_id);
            line["tags"] = json!(with_cluster(tags, &context.cluster));
            line
        }
    };
    line["id"] = id.into();
    line["call"] = operation.name().into();
    line["cluster"] = (&*context.cluster).into();
    let left = u64::try_from(context.time_left.as_millis()).unwrap_or(u64::MAX);
    line["deadline_ms"] = left.into();
    line.to_string()
}

fn creation(create: &Create, context: &Context) -> Value {
    let kind = &create.kind;
    json!({
        "key": create.key.to_string(),
        "token": InstanceId(create.token).to_string(),
        "pool": &*create.pool,
        "type": {
            "name": &*kind.name,
            "provider_type": &*kind.provider_type,
            "cpu_mhz": kind.cpu,
            "memory_mb": kind.memory_mb,
            "disk_mb": kind.disk_mb,
            "max_allocations": kind.max_allocations,
            "price_micro": kind.price_micro,
            "preemptible": kind.preemptible,
            "quota_group": &*kind.quota_group,
            "image": &*kind.image,
            "node": &kind.node,
        },
        "tags": with_cluster(&create.tags, &context.cluster),
        "servers": &context.servers,
        "agent_config": agent_config(create, &context.servers).text(),
    })
}

/// What a reply means to whoever made the call. A reply that makes no sense leaves the outcome
/// unknown.
pub(super) fn answer(operation: &Operation, outcome: Outcome) -> Result<Answer, ProviderError> {
    let result = outcome.map_err(|error| refusal(&error))?;
    let answer = match operation {
        Operation::Create(create) => created(create, &result).map(Answer::Created),
        Operation::List => listing(&result).map(Answer::Listed),
        Operation::Destroy { .. } => parse(&result).map(|DestroyedLine { state }| {
            Answer::Destroyed(match state {
                DestroyedWord::Gone => Destroyed::Gone,
                DestroyedWord::Asked => Destroyed::Asked,
            })
        }),
        Operation::SetTags { .. } => Ok(Answer::Tagged),
        Operation::Describe { .. } => description(&result).map(Answer::Described),
    };
    answer.map_err(|why| {
        let text = format!("its answer to {} makes no sense: {why}", operation.name());
        ProviderError::new(ErrorClass::Transient, &text)
    })
}

fn parse<T: DeserializeOwned>(value: &RawValue) -> Result<T, String> {
    serde_json::from_str(value.get()).map_err(|error| error.to_string())
}

fn limited(name: &str, text: &str) -> Result<(), String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("{name} is longer than {NAME_BYTES_MAX} bytes"));
    }
    Ok(())
}

#[derive(Deserialize)]
struct MachineLine {
    provider_id: Text,
    #[serde(default)]
    address: Option<Text>,
    /// Of a create only.
    #[serde(default)]
    scope: Text,
    /// Of a list only, where there must be some.
    #[serde(default, deserialize_with = "few_tags")]
    tags: Option<Tags>,
}

/// Tags, no more than a machine may have: the rest is not even read.
fn few_tags<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Tags>, D::Error> {
    struct FewTags;

    impl<'de> Visitor<'de> for FewTags {
        type Value = Option<Tags>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {TAGS_MAX} tags")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut tags = Tags::new();
            while let Some((name, value)) = map.next_entry()? {
                tags.insert(name, value);
                if tags.len() > TAGS_MAX {
                    return Err(A::Error::invalid_length(tags.len(), &self));
                }
            }
            Ok(Some(tags))
        }
    }

    value.deserialize_any(FewTags)
}

impl MachineLine {
    fn machine(self, scope: Text, tags: Tags) -> Result<Machine, String> {
        let Self { provider_id, address, .. } = self;
        if provider_id.is_empty() {
            return Err("provider_id is empty".to_owned());
        }
        let address = address.unwrap_or_default();
        let limits = [("provider_id", &provider_id), ("address", &address), ("scope", &scope)];
        for (name, text) in limits {
            limited(name, text)?;
        }
        Ok(Machine { provider_id, address, scope, tags })
    }
}

fn created(create: &Create, result: &RawValue) -> Result<Machine, String> {
    let line: MachineLine = parse(result)?;
    if line.scope.is_empty() {
        return Err("scope is missing".to_owned());
    }
    let scope = line.scope.clone();
    line.machine(scope, create.tags.clone())
}

#[derive(Deserialize)]
struct ListLine {
    scope: Text,
    machines: Vec<MachineLine>,
}

fn listing(result: &RawValue) -> Result<Listing, String> {
    let ListLine { scope, machines } = parse(result)?;
    if scope.is_empty() {
        return Err("scope is empty".to_owned());
    }
    limited("scope", &scope)?;
    let machines = machines.into_iter().map(|mut line| {
        let Some(tags) = line.tags.take() else {
            return Err(format!("machine {} has no field `tags`", line.provider_id));
        };
        line.machine(scope.clone(), tags)
    });
    let machines = machines.collect::<Result<_, _>>()?;
    Ok(Listing { scope, machines })
}

#[derive(Deserialize)]
struct DestroyedLine {
    state: DestroyedWord,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum DestroyedWord {
    Gone,
    Asked,
}

#[derive(Deserialize)]
struct DescriptionLine {
    state: StateWord,
    #[serde(default)]
    address: Option<Text>,
    #[serde(default)]
    words: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateWord {
    Booting,
    Up,
    Broken,
    Gone,
}

fn description(result: &RawValue) -> Result<Description, String> {
    let DescriptionLine { state, address, words } = parse(result)?;
    let address = address.unwrap_or_default();
    limited("address", &address)?;
    let state = match state {
        StateWord::Booting => MachineState::Booting,
        StateWord::Up => MachineState::Up,
        StateWord::Broken => MachineState::Broken,
        StateWord::Gone => MachineState::Gone,
    };
    Ok(Description { state, address, words: clip(&words) })
}

#[derive(Deserialize)]
struct ErrorLine {
    class: ClassWord,
    #[serde(default)]
    scope: ScopeWord,
    #[serde(default, deserialize_with = "lenient")]
    retry_after_ms: Option<u64>,
    #[serde(default)]
    detail: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ClassWord {
    RateLimited,
    Quota,
    NoCapacity,
    Transient,
    Fatal,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum ScopeWord {
    #[default]
    All,
    QuotaGroup,
    Type,
}

fn refusal(error: &RawValue) -> ProviderError {
    let ErrorLine { class, scope, retry_after_ms, detail } = match parse(error) {
        Ok(line) => line,
        Err(why) => {
            let text = format!("its error makes no sense: {why}");
            return ProviderError::new(ErrorClass::Transient, &text);
        }
    };
    let class = match class {
        ClassWord::RateLimited => ErrorClass::RateLimited,
        ClassWord::Quota => ErrorClass::Quota,
        ClassWord::NoCapacity => ErrorClass::NoCapacity,
        ClassWord::Transient => ErrorClass::Transient,
        ClassWord::Fatal => ErrorClass::Fatal,
    };
    let scope = match scope {
        ScopeWord::All => ErrorScope::All,
        ScopeWord::QuotaGroup => ErrorScope::QuotaGroup,
        ScopeWord::Type => ErrorScope::Type,
    };
    ProviderError { class, scope, retry_after_ms, detail: clip(&detail) }
}
