//! The conformance test for authors of programs: one machine from its create to its end, and what
//! the program said meanwhile.
//!
//! A check says whether it passed, and if not, why; what a failed one makes impossible is skipped.
//! Every machine of the test is asked to go at the end, whatever failed. Must never touch another
//! machine: each call names the machine of the test.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other answer does not fit, whatever it is"
)]

use std::{collections::BTreeSet, time::Duration};

use elastic::call::{
    Answer, Create, Destroyed, Listing, Machine, MachineState, Operation, TAG_BEHAVIOR,
    TAG_CLUSTER, TAG_INSTANCE, TAG_POOL, TAG_TYPE, Tags,
};
use fsm::{
    InstanceId, Text,
    pool::{DeclaredNode, InstanceType},
};
use ground::rt::{self, Instant};

use super::{
    Context,
    exec::program::{EndKind, Program, Stderr},
};

/// The pool of the machine of the test.
const POOL: &str = "provider-check";
/// The tag that is replaced.
const TAG_EXTRA: &str = "quorate-check";
/// Between two lists while something has to show.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How long a second reply to a call is awaited.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// What a program is checked with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Program and arguments.
    pub command: Vec<String>,
    /// The type of machine, as the provider calls it.
    pub provider_type: String,
    /// Addresses of servers in the agent's configuration.
    pub servers: Vec<String>,
    /// How long a reply, a change that lists must show, and the end of the machine may each take.
    pub patience: Duration,
}

/// What came of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    Failed {
        /// What was expected, and what happened instead.
        why: String,
    },
    /// An earlier failure left nothing to check.
    Skipped,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// For programs that read the report; never changed.
    pub name: &'static str,
    /// What the program has to do.
    pub rule: &'static str,
    pub verdict: Verdict,
}

/// What was found out about a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Findings {
    pub checks: Vec<Check>,
    /// What the program does beside the protocol, and servers take.
    pub warnings: Vec<&'static str>,
    /// The instance whose machine may be there still, for whoever has to look.
    pub left_behind: Option<InstanceId>,
}

impl Findings {
    /// No check failed.
    pub fn has_passed(&self) -> bool {
        self.checks.iter().all(|check| check.verdict == Verdict::Passed)
    }
}

/// All checks in their order: name and rule.
const RULES: [(&str, &str); 13] = [
    ("hello", "the first line says version and name"),
    ("create", "create answers with the machine"),
    ("create-again", "a second create with the same key answers with the same machine"),
    ("list", "list has the machine once, with a scope"),
    ("list-tags", "list shows the tags of the create"),
    ("describe", "describe says booting or up"),
    ("set-tags", "set-tags replaces all tags"),
    ("at-once", "calls that are made at once are all answered"),
    ("destroy", "after destroy the machine goes from the list"),
    ("destroy-unknown", "destroy of a machine that is not there answers gone"),
    ("one-reply", "each call has exactly one reply"),
    ("json-lines", "standard output has only JSON lines"),
    ("end", "the program runs until SIGTERM, and then ends"),
];

type Step = Result<(), String>;

/// Runs all checks on a program. An error: it cannot be started.
pub async fn run(plan: &Plan) -> std::io::Result<Findings> {
    let mut run = Run::start(plan)?;
    let mut verdicts = Vec::new();
    let hello = run.hello().await;
    let goes_on = hello.is_ok();
    verdicts.push(Some(hello));
    let created = if goes_on { Some(run.create().await) } else { None };
    let machine = created.as_ref().and_then(|made| made.clone().ok());
    verdicts.push(created.map(|made| made.map(drop)));
    match &machine {
        None => verdicts.extend([const { None }; 7]),
        Some(machine) => {
            verdicts.push(Some(run.create_again(machine).await));
            let listed = run.list_has(machine).await;
            let found = listed.clone().ok();
            verdicts.push(Some(listed.map(drop)));
            verdicts.push(found.map(|found| same_tags(&run.tags(true), &found)));
            verdicts.push(Some(run.describe(machine).await));
            verdicts.push(Some(run.set_tags(machine).await));
            verdicts.push(Some(run.at_once(machine).await));
            verdicts.push(Some(run.destroy(machine).await));
        }
    }
    verdicts.push(if goes_on { Some(run.destroy_unknown().await) } else { None });
    verdicts.push(if goes_on { Some(run.one_reply().await) } else { None });
    let left_behind = run.clear_up().await;
    verdicts.push(if goes_on { Some(run.json_lines()) } else { None });
    let warnings = run.program.habits();
    verdicts.push(run.end().await);
    let checks = RULES.into_iter().zip(verdicts).map(|((name, rule), step)| {
        let verdict = match step {
            None => Verdict::Skipped,
            Some(Ok(())) => Verdict::Passed,
            Some(Err(why)) => Verdict::Failed { why },
        };
        Check { name, rule, verdict }
    });
    Ok(Findings { checks: checks.collect(), warnings, left_behind })
}

/// A program that is checked.
struct Run<'a> {
    plan: &'a Plan,
    program: Program,
    cluster: Text,
    create: Create,
    /// A machine may be there.
    is_made: bool,
}

impl<'a> Run<'a> {
    fn start(plan: &'a Plan) -> std::io::Result<Self> {
        let program = Program::start(&plan.command, Stderr::Inherit)?;
        let key = InstanceId(rt::random_id());
        let cluster: Text = InstanceId(rt::random_id()).to_string().into();
        let kind = InstanceType {
            name: "check".into(),
            provider_type: plan.provider_type.as_str().into(),
            cpu: 100,
            memory_mb: 64,
            node: DeclaredNode {
                datacenter: "dc1".into(),
                drivers: vec!["mock".into()],
                ..DeclaredNode::default()
            },
            ..InstanceType::default()
        };
        let create =
            Create { key, token: rt::random_id(), pool: POOL.into(), kind, tags: Tags::new() };
        let mut run = Self { plan, program, cluster, create, is_made: false };
        run.create.tags = run.tags(true);
        Ok(run)
    }

    /// The tags of the machine, at first or as they are replaced.
    fn tags(&self, at_first: bool) -> Tags {
        let behavior = if at_first { "run" } else { "hold" };
        let mut pairs: Vec<(&str, Text)> = vec![
            (TAG_CLUSTER, self.cluster.clone()),
            (TAG_INSTANCE, self.create.key.to_string().into()),
            (TAG_POOL, POOL.into()),
            (TAG_TYPE, "check".into()),
            (TAG_BEHAVIOR, behavior.into()),
        ];
        if at_first {
            pairs.push((TAG_EXTRA, "first \"tag\" é".into()));
        }
        pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    async fn call(&self, operation: Operation) -> Result<Answer, String> {
        let context = Context {
            cluster: self.cluster.clone(),
            servers: self.plan.servers.clone(),
            time_left: self.plan.patience,
            known: BTreeSet::new(),
        };
        let name = operation.name();
        let call = self.program.call(&operation, &context);
        match rt::timeout(self.plan.patience, call).await {
            Ok(result) => result.map_err(|error| format!("{name} failed: {error}")),
            Err(_) => {
                Err(format!("{name} was not answered within {} s", self.plan.patience.as_secs()))
            }
        }
    }

    async fn list(&self) -> Result<Listing, String> {
        match self.call(Operation::List).await? {
            Answer::Listed(listing) => Ok(listing),
            other => Err(unfitting(&other)),
        }
    }

    async fn hello(&self) -> Step {
        self.program.greeted().await.map(drop).map_err(|ended| ended.why.to_string())
    }

    async fn create(&mut self) -> Result<Machine, String> {
        self.is_made = true;
        match self.call(Operation::Create(Box::new(self.create.clone()))).await? {
            Answer::Created(machine) => Ok(machine),
            other => Err(unfitting(&other)),
        }
    }

    async fn create_again(&mut self, first: &Machine) -> Step {
        let second = self.create().await?;
        if second.provider_id != first.provider_id {
            let (key, one, two) = (self.create.key, &first.provider_id, &second.provider_id);
            return Err(format!("key {key} first made machine {one} and then machine {two}"));
        }
        Ok(())
    }

    /// Lists until what is asked for shows, or until patience ends with what was wrong last.
    async fn until_list<T>(
        &self,
        look: impl Fn(&Listing) -> Result<T, String>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + self.plan.patience;
        loop {
            let why = match look(&self.list().await?) {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            if Instant::now() + LOOK_PAUSE >= deadline {
                return Err(format!("{why} (after {} s)", self.plan.patience.as_secs()));
            }
            rt::sleep(LOOK_PAUSE).await;
        }
    }

    async fn list_has(&self, machine: &Machine) -> Result<Machine, String> {
        let found = self
            .until_list(|listing| {
                let mut same =
                    listing.machines.iter().filter(|one| one.provider_id == machine.provider_id);
                match (same.next(), same.next()) {
                    (Some(found), None) => Ok(found.clone()),
                    (Some(_), Some(_)) => {
                        Err(format!("machine {} is in the list twice", machine.provider_id))
                    }
                    (None, _) => Err(format!(
                        "machine {} is not among the {} of the list",
                        machine.provider_id,
                        listing.machines.len()
                    )),
                }
            })
            .await?;
        if found.scope != machine.scope {
            let (list, create) = (&found.scope, &machine.scope);
            return Err(format!("create said scope `{create}`, and list says `{list}`"));
        }
        Ok(found)
    }

    async fn describe(&self, machine: &Machine) -> Step {
        let answer = self
            .call(Operation::Describe {
                instance: self.create.key,
                provider_id: machine.provider_id.clone(),
            })
            .await?;
        let Answer::Described(described) = answer else { return Err(unfitting(&answer)) };
        match described.state {
            MachineState::Booting | MachineState::Up => Ok(()),
            MachineState::Broken => {
                Err(format!("the new machine is said to be broken: {}", described.words))
            }
            MachineState::Gone => Err("the new machine is said to be gone".to_owned()),
        }
    }

    async fn set_tags(&self, machine: &Machine) -> Step {
        let tags = self.tags(false);
        let set = Operation::SetTags {
            instance: self.create.key,
            provider_id: machine.provider_id.clone(),
            tags: tags.clone(),
        };
        self.call(set).await?;
        self.until_list(|listing| {
            let mut machines = listing.machines.iter();
            let found = machines.find(|one| one.provider_id == machine.provider_id);
            let found = found.ok_or("the machine went from the list with set-tags")?;
            same_tags(&tags, found)
        })
        .await
    }

    async fn at_once(&self, machine: &Machine) -> Step {
        let (lists, described) = futures_util::join!(
            async { futures_util::join!(self.list(), self.list()) },
            self.describe(machine)
        );
        lists.0.and(lists.1).map(drop).and(described)
    }

    /// Asks for the end of a machine, and of others that are there by mistake, until none is
    /// listed.
    async fn destroy(&self, machine: &Machine) -> Step {
        let deadline = Instant::now() + self.plan.patience;
        let mut ids = BTreeSet::from([machine.provider_id.clone()]);
        let mut said = "nothing";
        loop {
            for provider_id in std::mem::take(&mut ids) {
                let instance = self.create.key;
                said = match self.call(Operation::Destroy { instance, provider_id }).await? {
                    Answer::Destroyed(Destroyed::Gone) => "gone",
                    Answer::Destroyed(Destroyed::Asked) => "asked",
                    other => return Err(unfitting(&other)),
                };
            }
            let machines = self.list().await?.machines;
            ids.extend(
                machines
                    .into_iter()
                    .filter(|one| self.is_ours(one, machine))
                    .map(|one| one.provider_id),
            );
            if ids.is_empty() {
                return Ok(());
            }
            if Instant::now() + LOOK_PAUSE >= deadline {
                let (ids, limit) = (ids.into_iter().collect::<Vec<_>>(), self.plan.patience);
                return Err(format!(
                    "destroy answered `{said}`, and {} s later the list still has {}",
                    limit.as_secs(),
                    ids.join(", ")
                ));
            }
            rt::sleep(LOOK_PAUSE).await;
        }
    }

    fn is_ours(&self, one: &Machine, machine: &Machine) -> bool {
        let key = self.create.key.to_string();
        one.provider_id == machine.provider_id
            || one.tags.get(TAG_INSTANCE).is_some_and(|tag| **tag == *key)
    }

    async fn destroy_unknown(&self) -> Step {
        let unknown = InstanceId(rt::random_id());
        let destroy =
            Operation::Destroy { instance: unknown, provider_id: unknown.to_string().into() };
        match self.call(destroy).await? {
            Answer::Destroyed(Destroyed::Gone) => Ok(()),
            Answer::Destroyed(Destroyed::Asked) => {
                Err("it answered `asked` for a machine that was never made".to_owned())
            }
            other => Err(unfitting(&other)),
        }
    }

    async fn one_reply(&self) -> Step {
        rt::sleep(QUIET_TIME).await;
        let strays = self.program.strays();
        if strays.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = strays.iter().map(u64::to_string).collect();
        let text = "a reply came although no call with its id waited for one (a second reply, one after \
                    the deadline, or an unknown id)";
        Err(format!("{text}: {}", ids.join(", ")))
    }

    fn json_lines(&self) -> Step {
        match self.program.ended() {
            Some(ended) if ended.kind == EndKind::Line => Err(ended.why.to_string()),
            Some(_) | None => Ok(()),
        }
    }

    /// Ends the program. None: it was ended before for another failure.
    async fn end(&self) -> Option<Step> {
        let ended = self.program.end().await;
        match ended.kind {
            EndKind::Asked if ended.was_killed => Some(Err("it went on and was killed".to_owned())),
            EndKind::Asked => Some(Ok(())),
            EndKind::Exit => Some(Err(format!("it ended by itself: {}", ended.why))),
            EndKind::Hello | EndKind::Line => None,
        }
    }

    /// Asks for the end of whatever the test has made, of a new program if the first has ended.
    async fn clear_up(&mut self) -> Option<InstanceId> {
        if !self.is_made {
            return None;
        }
        let left = Some(self.create.key);
        if self.program.ended().is_none() {
            return if self.destroy_listed().await.is_ok() { None } else { left };
        }
        let Ok(program) = Program::start(&self.plan.command, Stderr::Inherit) else { return left };
        let first = std::mem::replace(&mut self.program, program);
        let cleared = self.destroy_listed().await;
        std::mem::replace(&mut self.program, first).end().await;
        if cleared.is_ok() { None } else { left }
    }

    async fn destroy_listed(&self) -> Step {
        let key = self.create.key.to_string();
        let machines = self.list().await?.machines;
        let ours = |one: &Machine| one.tags.get(TAG_INSTANCE).is_some_and(|tag| **tag == *key);
        for machine in machines.iter().filter(|one| ours(one)) {
            self.destroy(machine).await?;
        }
        Ok(())
    }
}

fn unfitting(answer: &Answer) -> String {
    format!("the answer is of another call: {answer:?}")
}

/// Whether a machine in a list has exactly these tags.
fn same_tags(wanted: &Tags, found: &Machine) -> Step {
    let missing = wanted.iter().find(|(name, _)| !found.tags.contains_key(*name));
    if let Some((name, _)) = missing {
        return Err(format!("machine {} is listed without tag {name}", found.provider_id));
    }
    let other = wanted.iter().find(|(name, value)| found.tags.get(*name) != Some(value));
    if let Some((name, value)) = other {
        let listed = found.tags.get(name).map_or("", |text| &**text);
        return Err(format!("tag {name} is `{listed}` in the list, and not `{value}`"));
    }
    match found.tags.keys().find(|name| !wanted.contains_key(*name)) {
        Some(name) => Err(format!("tag {name} is in the list, and was not asked for")),
        None => Ok(()),
    }
}
