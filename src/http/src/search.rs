//! `/v1/search` (prefixes of ids and names) and `/v1/search/fuzzy` (parts of names), by context and
//! namespace.
//!
//! A search returns at most [`MATCHES_MAX`] matches of a context. Prefix searches of ids read only
//! the matching rows. The other searches read whole tables, so they wait in the same queue as large
//! lists.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{JobKey, State, right::Right, table::TableId};
use serde_json::{Value, json};

use super::{
    answer::{Answer, Meta},
    blocking::tables_index,
    body::Fields,
    call::{Call, Namespaces},
    error::Error,
    list::IdPrefix,
    route::{Route, Subject},
};

/// Matches of a context in an answer (Nomad's `limit_query`).
const MATCHES_MAX: usize = 20;
/// Shortest text of a fuzzy search, characters (Nomad's `min_term_length`).
const TEXT_CHARS_MIN: usize = 2;
/// Longest text of a search, bytes.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// Tables that an answer depends on.
const TABLES: &[TableId] = &[
    TableId::Jobs,
    TableId::Evaluations,
    TableId::Allocations,
    TableId::Deployments,
    TableId::GroupScalings,
    TableId::Nodes,
    TableId::NodePools,
    TableId::Namespaces,
    TableId::Instances,
    TableId::InstancePools,
];
/// Nomad's contexts of things that cannot exist here: nothing matches.
const EMPTY: [&str; 6] =
    ["plugins", "volumes", "host_volumes", "vars", "quotas", "recommendations"];
/// Contexts of a prefix search. Those of instances are ours and not part of `all`, since Nomad's
/// clients do not know them.
const PREFIX: [&str; 10] = [
    "jobs",
    "evals",
    "allocs",
    "deployment",
    "nodes",
    "node_pools",
    "namespaces",
    "scaling_policy",
    "instances",
    "instance_pools",
];
/// Contexts that only a fuzzy search has.
const FUZZY: [&str; 6] = ["groups", "tasks", "services", "images", "commands", "classes"];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Each kind asks for its own right.
        Route::write("/v1/search", Subject::Several, Right::Several, prefix),
        Route::write("/v1/search/fuzzy", Subject::Several, Right::Several, fuzzy),
    ]
}

/// What is asked for.
struct Query {
    text: String,
    contexts: Vec<&'static str>,
    namespaces: Namespaces,
}

impl Query {
    fn of(call: &Call, key: &str, known: &[&'static str]) -> Result<Self, Error> {
        let body = call.json_required()?;
        let fields = Fields::of(&body)?;
        let text = fields.text(key)?.unwrap_or("").to_owned();
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::bad(format!("{key}: longer than {TEXT_BYTES_MAX} bytes")));
        }
        let context = fields.text("Context")?.unwrap_or("");
        let contexts = match context {
            "" | "all" => {
                let is_ours = |context: &&str| context.starts_with("instance");
                known.iter().copied().filter(|context| !is_ours(context)).collect()
            }
            one => match known.iter().find(|context| **context == one) {
                Some(context) => vec![*context],
                None => {
                    let known = known.join(", ");
                    let text = format!("Context: must be all or one of {known}; not `{one}`");
                    return Err(Error::bad(text));
                }
            },
        };
        Ok(Self { text, contexts, namespaces: call.namespaces() })
    }
}

async fn prefix(call: Call) -> Result<Answer, Error> {
    let known: Vec<&str> = PREFIX.into_iter().chain(EMPTY).collect();
    let query = Query::of(&call, "Prefix", &known)?;
    search(&call, move |state| {
        let found = query.contexts.iter().map(|context| {
            let mut ids = ids(state, context, &query);
            let truncated = ids.len() > MATCHES_MAX;
            ids.truncate(MATCHES_MAX);
            (*context, ids.into_iter().map(Value::from).collect(), truncated)
        });
        found.collect()
    })
    .await
}

async fn fuzzy(call: Call) -> Result<Answer, Error> {
    let known: Vec<&str> = PREFIX.into_iter().chain(FUZZY).chain(EMPTY).collect();
    let mut query = Query::of(&call, "Text", &known)?;
    let length = query.text.chars().count();
    if length < TEXT_CHARS_MIN {
        let text = format!(
            "fuzzy search query must be at least {TEXT_CHARS_MIN} characters, got {length}"
        );
        return Err(Error::bad(text));
    }
    // A job is found with what is in it, as in Nomad.
    if query.contexts == ["jobs"] {
        query.contexts.extend(["groups", "tasks", "services", "images", "commands"]);
    }
    search(&call, move |state| {
        let mut names = Names::of(state, &query);
        let found = query.contexts.iter().map(|context| match names.found.remove(context) {
            Some(best) => {
                let truncated = best.truncated;
                (*context, best.matches.into_iter().map(Match::view).collect(), truncated)
            }
            None => {
                // Only the beginning of an id is looked for.
                let mut ids = ids(state, context, &query);
                let truncated = ids.len() > MATCHES_MAX;
                ids.truncate(MATCHES_MAX);
                (*context, ids.into_iter().map(|id| json!({ "ID": id })).collect(), truncated)
            }
        });
        found.collect()
    })
    .await
}

/// Context, its matches, and whether there are more.
type Found = Vec<(&'static str, Vec<Value>, bool)>;

async fn search(
    call: &Call,
    find: impl FnOnce(&State) -> Found + Send + 'static,
) -> Result<Answer, Error> {
    let snapshot = call.read().await?;
    let meta = Meta::of(&snapshot, tables_index(&snapshot.state, TABLES));
    let state = snapshot.state;
    let rows = state.jobs().len().max(state.allocations().len());
    let found = call.in_turn(rows, move || Ok(find(&state))).await?;
    let truncations: BTreeMap<&str, bool> =
        found.iter().map(|(context, _, truncated)| (*context, *truncated)).collect();
    let matches: BTreeMap<&str, Vec<Value>> =
        found.into_iter().map(|(context, matches, _)| (context, matches)).collect();
    call.answer(&json!({ "Matches": matches, "Truncations": truncations }), Some(meta))
}

/// Ids of a context that begin with the text, in order: up to one more than an answer shows.
fn ids(state: &State, context: &str, query: &Query) -> Vec<String> {
    let text = query.text.as_str();
    let namespaces = &query.namespaces;
    let id_prefix = IdPrefix::parse(text);
    let most = MATCHES_MAX + 1;
    /// Rows of a table whose ids begin with the prefix; a text that begins no id matches nothing.
    macro_rules! by_id {
        ($table:ident, $id:path, $keep:expr) => {
            id_prefix.as_ref().map_or_else(Vec::new, |prefix| {
                let first = $id(prefix.first());
                let rows = state.$table().iter_from(&first);
                let rows = rows.take_while(|row| prefix.matches(&row.id.0)).filter($keep);
                rows.take(most).map(|row| row.id.to_string()).collect()
            })
        };
    }
    let names = |names: &mut dyn Iterator<Item = &fsm::Text>| -> Vec<String> {
        names.filter(|name| name.starts_with(text)).take(most).map(ToString::to_string).collect()
    };
    match context {
        "jobs" => match namespaces {
            Namespaces::One(namespace) => state
                .jobs()
                .iter_from(&JobKey::new(namespace.clone(), text))
                .take_while(|job| job.key.namespace == *namespace && job.key.id.starts_with(text))
                .take(most)
                .map(|job| job.key.id.to_string())
                .collect(),
            Namespaces::All => names(&mut state.jobs().iter().map(|job| &job.key.id)),
        },
        "evals" => {
            by_id!(evaluations, fsm::EvaluationId, |row| namespaces.contains(&row.job.namespace))
        }
        "allocs" => {
            by_id!(allocations, fsm::AllocationId, |row| namespaces.contains(&row.job.namespace))
        }
        "deployment" => {
            by_id!(deployments, fsm::DeploymentId, |row| namespaces.contains(&row.job.namespace))
        }
        "scaling_policy" => {
            let rows = state.group_scalings().iter();
            let rows = rows.filter(|row| namespaces.contains(&row.job.namespace));
            let ids = rows.filter_map(|row| Some(row.policy.as_ref()?.id));
            let is_meant = |id: &fsm::ScalingPolicyId| {
                id_prefix.as_ref().is_some_and(|prefix| prefix.matches(&id.0))
            };
            let mut ids: Vec<_> = ids.filter(is_meant).collect();
            ids.sort_unstable();
            ids.into_iter().take(most).map(|id| id.to_string()).collect()
        }
        "nodes" => by_id!(nodes, fsm::NodeId, |_| true),
        "instances" => by_id!(instances, fsm::InstanceId, |_| true),
        "node_pools" => names(&mut state.node_pools().iter().map(|pool| &pool.name)),
        "namespaces" => names(&mut state.namespaces().iter().map(|namespace| &namespace.name)),
        "instance_pools" => names(&mut state.instance_pools().iter().map(|pool| &pool.name)),
        _ => Vec::new(),
    }
}

/// A name that holds the text: ordered by where it does, then the shorter name first, then by name,
/// as Nomad orders them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Match {
    position: usize,
    length: usize,
    name: String,
    /// Where it is: namespace, job, group, task.
    scope: Vec<String>,
}

impl Match {
    fn view(self) -> Value {
        if self.scope.is_empty() {
            return json!({ "ID": self.name });
        }
        json!({ "ID": self.name, "Scope": self.scope })
    }
}

/// The best matches of a context.
#[derive(Default)]
struct Best {
    matches: BTreeSet<Match>,
    truncated: bool,
}

/// Names of contexts that are searched by a part of a name.
struct Names<'q> {
    /// The text in lower case.
    text: String,
    query: &'q Query,
    found: BTreeMap<&'static str, Best>,
}

impl<'q> Names<'q> {
    fn of(state: &State, query: &'q Query) -> Self {
        let searched = [
            "jobs",
            "groups",
            "tasks",
            "services",
            "images",
            "commands",
            "classes",
            "nodes",
            "allocs",
            "namespaces",
            "node_pools",
            "instance_pools",
        ];
        let wanted = searched.into_iter().filter(|context| query.contexts.contains(context));
        let found = wanted.map(|context| (context, Best::default())).collect();
        let mut names = Self { text: query.text.to_lowercase(), query, found };
        names.jobs(state);
        names.nodes(state);
        if names.wants("allocs") {
            for allocation in state.allocations().iter() {
                let namespace = &allocation.job.namespace;
                if query.namespaces.contains(namespace) {
                    let id = || vec![namespace.to_string(), allocation.id.to_string()];
                    names.look("allocs", &allocation.name(), id);
                }
            }
        }
        for namespace in state.namespaces().iter() {
            names.look("namespaces", &namespace.name, Vec::new);
        }
        for pool in state.node_pools().iter() {
            names.look("node_pools", &pool.name, Vec::new);
        }
        for pool in state.instance_pools().iter() {
            names.look("instance_pools", &pool.name, Vec::new);
        }
        names
    }

    fn wants(&self, context: &str) -> bool {
        self.found.contains_key(context)
    }

    fn jobs(&mut self, state: &State) {
        let contexts = ["jobs", "groups", "tasks", "services", "images", "commands"];
        if !contexts.iter().any(|context| self.wants(context)) {
            return;
        }
        for job in state.jobs().iter() {
            if !self.query.namespaces.contains(&job.key.namespace) {
                continue;
            }
            let Some(spec) = state.current_spec(job) else { continue };
            let at = [job.key.namespace.to_string(), job.key.id.to_string()];
            self.look("jobs", &spec.name, || at.to_vec());
            for group in &spec.groups {
                self.look("groups", &group.name, || at.to_vec());
                let in_group = || at.iter().cloned().chain([group.name.to_string()]).collect();
                if self.wants("services") && !group.services_json.is_empty() {
                    for name in service_names(&group.services_json) {
                        self.look("services", &name, in_group);
                    }
                }
                for task in &group.tasks {
                    self.look("tasks", &task.name, in_group);
                    let in_task = || {
                        let group: Vec<String> = in_group();
                        group.into_iter().chain([task.name.to_string()]).collect()
                    };
                    for (context, key) in [("images", "image"), ("commands", "command")] {
                        if self.wants(context)
                            && let Some(value) = config_text(&task.config_json, key)
                        {
                            self.look(context, &value, in_task);
                        }
                    }
                }
            }
        }
    }

    fn nodes(&mut self, state: &State) {
        if !self.wants("nodes") && !self.wants("classes") {
            return;
        }
        for node in state.nodes().iter() {
            let id = || vec![node.id.to_string()];
            self.look("nodes", &node.description.name, id);
            self.look("classes", &node.description.class, id);
        }
    }

    fn look(&mut self, context: &'static str, name: &str, scope: impl FnOnce() -> Vec<String>) {
        let Some(best) = self.found.get_mut(context) else { return };
        let Some(position) = name.to_lowercase().find(&self.text) else { return };
        let length = name.chars().count();
        best.matches.insert(Match { position, length, name: name.to_owned(), scope: scope() });
        if best.matches.len() > MATCHES_MAX {
            best.matches.pop_last();
            best.truncated = true;
        }
    }
}

fn service_names(services_json: &str) -> Vec<String> {
    let services: Value = serde_json::from_str(services_json).unwrap_or_default();
    let services = services.as_array().cloned().unwrap_or_default();
    let name = |service: &Value| Some(service.get("Name")?.as_str()?.to_owned());
    services.iter().filter_map(name).collect()
}

/// A text of a driver's config.
fn config_text(config_json: &str, key: &str) -> Option<String> {
    let config: Value = serde_json::from_str(config_json).ok()?;
    Some(config.get(key)?.as_str()?.to_owned())
}
