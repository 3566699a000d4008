//! Feasibility: may a group run on a node, apart from room? If all nodes of a computed class must
//! give the same answer, the class is checked once.
//!
//! The checks run in this order: the job's constraints, the group's drivers, the constraints of the
//! group and its tasks. The first that fails is the reason, for every node of the class.

use std::collections::BTreeMap;

use fsm::{ClassId, JobSpec, Node, TaskGroup, Text, job::Constraint};

use crate::place::{constraint::Condition, pattern::Budget};

const MISSING_DRIVERS: &str = "missing drivers";

enum Check {
    Condition(Condition),
    Driver(Text),
}

/// What is known of a computed class.
#[derive(Clone, PartialEq, Eq)]
enum Known {
    Nothing,
    Eligible,
    /// The text is the reason.
    Ineligible(Text),
}

/// The checks of the job or of one group.
struct Level {
    checks: Vec<Check>,
    /// A check reads a property in which nodes of one class may differ. Then every node is checked
    /// alone, and nothing is known of classes (Nomad's "escaped" constraints).
    escaped: bool,
    /// By class number, as [`Feasibility`] gives them out.
    memo: Vec<Known>,
}

impl Level {
    fn new(drivers: impl Iterator<Item = Text>, constraints: &[&Constraint]) -> Self {
        let mut names: Vec<Text> = drivers.collect();
        names.sort_unstable();
        names.dedup();
        let mut escaped = false;
        let mut checks: Vec<_> = names.into_iter().map(Check::Driver).collect();
        for constraint in constraints {
            if Condition::distinct(constraint).is_some() {
                continue;
            }
            let condition = Condition::compile(constraint);
            escaped |= condition.is_unique();
            checks.push(Check::Condition(condition));
        }
        Self { checks, escaped, memo: Vec::new() }
    }

    fn known(&self, class: usize) -> &Known {
        self.memo.get(class).unwrap_or(&Known::Nothing)
    }

    fn is_eligible(&self, class: usize) -> bool {
        *self.known(class) == Known::Eligible
    }

    fn is_ineligible(&self, class: usize) -> bool {
        matches!(self.known(class), Known::Ineligible(_))
    }

    fn learn(&mut self, class: usize, known: Known) {
        if self.memo.len() <= class {
            self.memo.resize(class + 1, Known::Nothing);
        }
        self.memo[class] = known;
    }

    /// The first check that `node` fails.
    fn failed(&self, node: &Node, budget: &Budget) -> Option<Text> {
        self.checks.iter().find_map(|check| match check {
            Check::Condition(condition) => {
                (!condition.met_by(node, budget)).then(|| condition.reason(budget))
            }
            Check::Driver(name) => {
                let usable = node
                    .description
                    .drivers
                    .get(name)
                    .is_some_and(|driver| driver.detected && driver.healthy);
                (!usable).then(|| MISSING_DRIVERS.into())
            }
        })
    }

    fn check(&mut self, node: &Node, class: usize, budget: &Budget) -> Result<(), Text> {
        if self.escaped {
            return self.failed(node, budget).map_or(Ok(()), Err);
        }
        if *self.known(class) == Known::Nothing {
            let failed = self.failed(node, budget);
            self.learn(class, failed.map_or(Known::Eligible, Known::Ineligible));
        }
        match self.known(class) {
            Known::Ineligible(reason) => Err(reason.clone()),
            Known::Eligible | Known::Nothing => Ok(()),
        }
    }
}

/// Which node classes suit the groups that could not be placed. A blocked evaluation keeps it, to
/// know which nodes may unblock it.
#[derive(Default)]
pub(crate) struct ClassSummary {
    pub(crate) eligibility: BTreeMap<ClassId, bool>,
    pub(crate) escaped: bool,
}

/// The checks of a job and its groups, and what is known of each class.
pub(crate) struct Feasibility {
    job: Level,
    groups: Vec<Level>,
    classes: BTreeMap<ClassId, usize>,
    /// Shared by all patterns of the job.
    budget: Budget,
}

impl Feasibility {
    /// `groups` are those of the job, and what stands behind them.
    pub(crate) fn new<'a>(spec: &JobSpec, groups: impl Iterator<Item = &'a TaskGroup>) -> Self {
        let job: Vec<&Constraint> = spec.constraints.iter().collect();
        Self {
            job: Level::new(std::iter::empty(), &job),
            groups: groups
                .map(|group| {
                    let constraints: Vec<_> = group_constraints(group).collect();
                    Level::new(group.tasks.iter().map(|task| task.driver.clone()), &constraints)
                })
                .collect(),
            classes: BTreeMap::new(),
            budget: Budget::new(Budget::OF_PASS),
        }
    }

    /// Whether group number `group` may run on `node`. The error is the reason.
    pub(crate) fn check(&mut self, node: &Node, group: usize) -> Result<(), Text> {
        let next = self.classes.len();
        let class = *self.classes.entry(node.class).or_insert(next);
        self.job.check(node, class, &self.budget)?;
        self.groups[group].check(node, class, &self.budget)
    }

    /// Which node classes suit the groups in `failed`. A class is eligible if one of them may run
    /// there, and ineligible if none may. A class of which that is not known is left out.
    pub(crate) fn summary(&self, failed: &[usize]) -> ClassSummary {
        let escaped = self.job.escaped || failed.iter().any(|group| self.groups[*group].escaped);
        let mut eligibility = BTreeMap::new();
        for (class, number) in &self.classes {
            let verdict = if self.job.is_ineligible(*number) {
                Some(false)
            } else if failed.iter().any(|group| self.groups[*group].is_eligible(*number)) {
                Some(true)
            } else if failed.iter().all(|group| self.groups[*group].is_ineligible(*number)) {
                Some(false)
            } else {
                None
            };
            if let Some(verdict) = verdict {
                eligibility.insert(*class, verdict);
            }
        }
        ClassSummary { eligibility, escaped }
    }
}

/// Constraints of a group and its tasks, in declaration order.
pub(crate) fn group_constraints(group: &TaskGroup) -> impl Iterator<Item = &Constraint> {
    group.constraints.iter().chain(group.tasks.iter().flat_map(|task| &task.constraints))
}
