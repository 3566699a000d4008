//! Policies (restart, reschedule, update, migrate): defaults by job type, what groups inherit from
//! the job and tasks from the group. Owns the checks that keep a policy from contradicting itself;
//! never schedules.

use fsm::{
    JobKind, TaskGroup,
    job::{
        DelayFunction, HealthCheck, JobUpdate, MigrateStrategy, ReschedulePolicy, RestartPolicy,
        UpdateStrategy,
    },
};
use serde_json::Value;

use super::{
    condition::refuse_block_per_node,
    fields::{Fields, Report, is_empty, quoted},
};
use calendar::duration::show_ms;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Shortest interval of a restart policy, and shortest delay of a reschedule policy (Nomad's
/// `RestartPolicyMinInterval`, `ReschedulePolicyMinDelay`).
const INTERVAL_MS_MIN: u64 = 5 * SECOND_MS;

/// Shortest interval of a reschedule policy (Nomad's `ReschedulePolicyMinInterval`).
const RESCHEDULE_INTERVAL_MS_MIN: u64 = 15 * SECOND_MS;

/// What groups get unless they say otherwise.
pub(super) struct Inherited {
    pub(super) kind: JobKind,
    pub(super) reschedule: Option<ReschedulePolicy>,
    pub(super) update: Option<UpdateStrategy>,
    pub(super) migrate: MigrateStrategy,
}

/// Nomad's restart policy for a job type.
pub(super) const fn restart_default(kind: JobKind) -> RestartPolicy {
    let (attempts, interval_ms) = match kind {
        JobKind::Service | JobKind::System => (2, 30 * MINUTE_MS),
        JobKind::Batch | JobKind::Sysbatch => (3, 24 * HOUR_MS),
    };
    RestartPolicy { attempts, interval_ms, delay_ms: 15 * SECOND_MS, fail: true }
}

/// Nomad's reschedule policy for a job type.
pub(super) const fn reschedule_default(kind: JobKind) -> Option<ReschedulePolicy> {
    match kind {
        JobKind::Service => Some(ReschedulePolicy {
            attempts: 0,
            interval_ms: 0,
            delay_ms: 30 * SECOND_MS,
            delay_function: DelayFunction::Exponential,
            delay_ms_max: HOUR_MS,
            unlimited: true,
        }),
        JobKind::Batch => Some(ReschedulePolicy {
            attempts: 1,
            interval_ms: 24 * HOUR_MS,
            delay_ms: 5 * SECOND_MS,
            delay_function: DelayFunction::Constant,
            delay_ms_max: 0,
            unlimited: false,
        }),
        JobKind::System | JobKind::Sysbatch => None,
    }
}

/// Nomad's update strategy for a job type.
pub(super) const fn update_default(kind: JobKind) -> Option<UpdateStrategy> {
    match kind {
        JobKind::Service | JobKind::System => Some(UpdateStrategy {
            stagger_ms: 30 * SECOND_MS,
            max_parallel: 1,
            healthy_ms_min: 10 * SECOND_MS,
            healthy_deadline_ms: 5 * MINUTE_MS,
            progress_deadline_ms: 10 * MINUTE_MS,
            health_check: HealthCheck::Checks,
            canaries: 0,
            auto_promote: false,
            auto_revert: false,
        }),
        JobKind::Batch | JobKind::Sysbatch => None,
    }
}

/// Nomad's migrate strategy.
pub(super) const MIGRATE_DEFAULT: MigrateStrategy = MigrateStrategy {
    max_parallel: 1,
    healthy_ms_min: 10 * SECOND_MS,
    healthy_deadline_ms: 5 * MINUTE_MS,
};

impl Inherited {
    /// The policies of the job itself over the defaults.
    pub(super) fn read(fields: &mut Fields<'_>, kind: JobKind, report: &mut Report) -> Self {
        let defaults = Self {
            kind,
            reschedule: reschedule_default(kind),
            update: update_default(kind),
            migrate: MIGRATE_DEFAULT,
        };
        Self {
            reschedule: reschedule(fields, "Reschedule", &defaults, report),
            update: update(fields, &defaults, true, report),
            migrate: migrate(fields, &defaults, report),
            ..defaults
        }
    }

    /// What is shown of the job's own strategy: a service has one also where nothing is said.
    pub(super) fn job_update(&self, is_given: bool) -> JobUpdate {
        let has_one = is_given || self.kind == JobKind::Service;
        let shown = self.update.filter(|_| has_one).map(|update| JobUpdate {
            max_parallel: update.max_parallel,
            stagger_ms: update.stagger_ms,
        });
        shown.unwrap_or_default()
    }
}

/// The restart policy of a group or task over what it inherits.
pub(super) fn restart(
    fields: &mut Fields<'_>,
    base: RestartPolicy,
    report: &mut Report,
) -> RestartPolicy {
    let Some(mut block) = fields.object("RestartPolicy", report) else { return base };
    let attempts = block.count("Attempts", 0, report).unwrap_or(base.attempts);
    let interval_ms = block.duration_ms("Interval", report).unwrap_or(base.interval_ms);
    let delay_ms = block.duration_ms("Delay", report).unwrap_or(base.delay_ms);
    let fail = match block.text_filled("Mode", report) {
        Some("fail") => true,
        Some("delay") => false,
        Some(other) => {
            report.error(block.at("Mode"), format!("{} is neither fail nor delay", quoted(other)));
            base.fail
        }
        None => base.fail,
    };
    block.boolean("RenderTemplates", report);
    if interval_ms < INTERVAL_MS_MIN {
        let message = format!("must be at least 5s, is {}", show_ms(interval_ms));
        report.error(block.at("Interval"), message);
    }
    if attempts == 0 && !fail {
        report
            .error(block.at("Attempts"), "0 attempts with mode delay is ambiguous: use mode fail");
    }
    if delay_ms.saturating_mul(u64::from(attempts)) > interval_ms {
        let message = format!(
            "{attempts} restarts with a delay of {} do not fit an interval of {}: shorten the delay or lengthen the interval",
            show_ms(delay_ms),
            show_ms(interval_ms)
        );
        report.error(block.at("Attempts"), message);
    }
    block.finish(report);
    RestartPolicy { attempts, interval_ms, delay_ms, fail }
}

/// The reschedule policy in field `name` over what it inherits.
pub(super) fn reschedule(
    fields: &mut Fields<'_>,
    name: &'static str,
    inherited: &Inherited,
    report: &mut Report,
) -> Option<ReschedulePolicy> {
    refuse_block_per_node(fields, name, "a reschedule policy", inherited.kind, report);
    let base = inherited.reschedule?;
    let Some(mut block) = fields.object(name, report) else { return Some(base) };
    let asked = block.count::<u32>("Attempts", 0, report);
    let unlimited = block
        .boolean("Unlimited", report)
        .unwrap_or(base.unlimited && asked.is_none_or(|attempts| attempts == 0));
    let attempts = asked.unwrap_or(if unlimited { 0 } else { base.attempts });
    let policy = ReschedulePolicy {
        attempts,
        interval_ms: block.duration_ms("Interval", report).unwrap_or(base.interval_ms),
        delay_ms: block.duration_ms("Delay", report).unwrap_or(base.delay_ms),
        delay_function: delay_function(&mut block, report).unwrap_or(base.delay_function),
        delay_ms_max: block.duration_ms("MaxDelay", report).unwrap_or(base.delay_ms_max),
        unlimited,
    };
    check_reschedule(&block, policy, report);
    block.finish(report);
    Some(policy)
}

/// Whether all attempts come within the interval, by the series of delays as Nomad counts it: an
/// exponential series by its last delay, and what is over the longest delay adds up.
fn fits_interval(policy: ReschedulePolicy) -> bool {
    let ReschedulePolicy { attempts, delay_ms, delay_ms_max, interval_ms, .. } = policy;
    match policy.delay_function {
        DelayFunction::Constant => delay_ms.saturating_mul(u64::from(attempts)) <= interval_ms,
        DelayFunction::Exponential => {
            let mut end = 0_u64;
            (0..attempts).all(|attempt| {
                let next =
                    2_u64.checked_pow(attempt).map_or(u64::MAX, |n| delay_ms.saturating_mul(n));
                end = if next > delay_ms_max { end.saturating_add(delay_ms_max) } else { next };
                end < interval_ms
            })
        }
        DelayFunction::Fibonacci => {
            let (mut before, mut last) = (delay_ms, delay_ms);
            let mut is_longest = false;
            (0..attempts).all(|attempt| {
                if attempt >= 2 {
                    let more = if is_longest { delay_ms_max } else { before };
                    (before, last) = (last, last.saturating_add(more));
                    is_longest |= last > delay_ms_max;
                }
                last <= interval_ms
            })
        }
    }
}

fn delay_function(block: &mut Fields<'_>, report: &mut Report) -> Option<DelayFunction> {
    let path = block.at("DelayFunction");
    match block.text_filled("DelayFunction", report)? {
        "constant" => Some(DelayFunction::Constant),
        "exponential" => Some(DelayFunction::Exponential),
        "fibonacci" => Some(DelayFunction::Fibonacci),
        other => {
            let message = format!("{} is none of constant, exponential, fibonacci", quoted(other));
            report.error(path, message);
            None
        }
    }
}

fn check_reschedule(block: &Fields<'_>, policy: ReschedulePolicy, report: &mut Report) {
    if policy.attempts == 0 && !policy.unlimited {
        return; // rescheduling is off
    }
    let mut check_min = |name: &str, ms: u64, min: u64| {
        if ms < min {
            let message = format!("must be at least {}, is {}", show_ms(min), show_ms(ms));
            report.error(block.at(name), message);
        }
    };
    check_min("Delay", policy.delay_ms, INTERVAL_MS_MIN);
    if !policy.unlimited {
        check_min("Interval", policy.interval_ms, RESCHEDULE_INTERVAL_MS_MIN);
    }
    if policy.unlimited && policy.attempts > 0 {
        let message = format!(
            "unlimited and {} attempts contradict each other: remove one of them",
            policy.attempts
        );
        report.error(block.at("Unlimited"), message);
    } else if !policy.unlimited
        && policy.interval_ms >= RESCHEDULE_INTERVAL_MS_MIN
        && !fits_interval(policy)
    {
        let message = format!(
            "{} attempts with a delay of {} do not fit an interval of {}: shorten the delay or lengthen the interval",
            policy.attempts,
            show_ms(policy.delay_ms),
            show_ms(policy.interval_ms)
        );
        report.error(block.at("Attempts"), message);
    }
    if policy.delay_function != DelayFunction::Constant && policy.delay_ms_max < policy.delay_ms {
        let message = format!(
            "must be at least Delay ({}), is {}",
            show_ms(policy.delay_ms),
            show_ms(policy.delay_ms_max)
        );
        report.error(block.at("MaxDelay"), message);
    }
}

/// The update strategy of a job or group over what it inherits.
pub(super) fn update(
    fields: &mut Fields<'_>,
    inherited: &Inherited,
    of_job: bool,
    report: &mut Report,
) -> Option<UpdateStrategy> {
    let Some(value) = fields.value("Update") else { return inherited.update };
    let printed = of_job && is_printed(value);
    if is_empty(value) && (printed || inherited.update.is_none()) {
        return inherited.update;
    }
    let mut block = Fields::new(value, fields.at("Update"), report)?;
    let Some(base) = inherited.update else {
        let kind = inherited.kind.name();
        let message = format!("{kind} jobs have no update strategy: remove the block");
        report.error(block.path, message);
        return None;
    };
    let keep = |ms: Option<u64>, base: u64| ms.filter(|ms| !printed || *ms > 0).unwrap_or(base);
    let strategy = UpdateStrategy {
        stagger_ms: keep(block.duration_ms("Stagger", report), base.stagger_ms),
        max_parallel: block.count("MaxParallel", 0, report).unwrap_or(base.max_parallel),
        healthy_ms_min: keep(block.duration_ms("MinHealthyTime", report), base.healthy_ms_min),
        healthy_deadline_ms: keep(
            block.duration_ms("HealthyDeadline", report),
            base.healthy_deadline_ms,
        ),
        progress_deadline_ms: keep(
            block.duration_ms("ProgressDeadline", report),
            base.progress_deadline_ms,
        ),
        health_check: health_check(&mut block, report).unwrap_or(base.health_check),
        canaries: block.count("Canary", 0, report).unwrap_or(base.canaries),
        auto_promote: block.boolean("AutoPromote", report).unwrap_or(base.auto_promote),
        auto_revert: block.boolean("AutoRevert", report).unwrap_or(base.auto_revert),
    };
    check_update(&block, strategy, report);
    check_rollout(&block, inherited.kind, strategy, report);
    block.finish(report);
    Some(strategy)
}

/// Whether a server has printed this strategy of a job: zeros, as the groups hold theirs in full.
/// Only servers write an empty `HealthCheck`, and all fields; a zero that a person wrote counts.
fn is_printed(value: &Value) -> bool {
    value.get("HealthCheck").and_then(Value::as_str) == Some("")
        && ["AutoPromote", "Canary", "Stagger"].iter().all(|name| value.get(name).is_some())
}

fn check_update(block: &Fields<'_>, strategy: UpdateStrategy, report: &mut Report) {
    if strategy.max_parallel == 0 {
        return; // all at once
    }
    if strategy.healthy_ms_min >= strategy.healthy_deadline_ms {
        let message = format!(
            "must be shorter than HealthyDeadline ({}), is {}",
            show_ms(strategy.healthy_deadline_ms),
            show_ms(strategy.healthy_ms_min)
        );
        report.error(block.at("MinHealthyTime"), message);
    }
    let progress_ms = strategy.progress_deadline_ms;
    if progress_ms > 0 && strategy.healthy_deadline_ms >= progress_ms {
        let message = format!(
            "must be shorter than ProgressDeadline ({}), is {}",
            show_ms(progress_ms),
            show_ms(strategy.healthy_deadline_ms)
        );
        report.error(block.at("HealthyDeadline"), message);
    }
    if strategy.stagger_ms == 0 {
        report.error(block.at("Stagger"), "must be longer than 0s");
    }
}

/// What a rollout by a deployment needs, and what of it has no effect.
fn check_rollout(block: &Fields<'_>, kind: JobKind, strategy: UpdateStrategy, report: &mut Report) {
    if kind == JobKind::System && strategy.canaries > 100 {
        let message = format!(
            "is a percentage of the nodes in a system job: from 0 to 100, not {}",
            strategy.canaries
        );
        report.error(block.at("Canary"), message);
    }
    if strategy.auto_promote && strategy.canaries == 0 {
        report.error(block.at("AutoPromote"), "requires a Canary count greater than zero");
    }
    if strategy.max_parallel == 0 && strategy.canaries > 0 {
        let path = block.at("Canary");
        report.warning(format!(
            "{path}: has no effect with MaxParallel 0, which updates all at once: set MaxParallel"
        ));
    }
}

/// Says that one step of a rollout takes in the whole group.
pub(super) fn check_step(
    fields: &Fields<'_>,
    group: &TaskGroup,
    kind: JobKind,
    report: &mut Report,
) {
    let parallel = group.update.map_or(0, |update| update.max_parallel);
    if kind == JobKind::Service && group.count > 1 && parallel > group.count {
        let path = fields.at("Update");
        report.warning(format!(
            "{path}.MaxParallel: {parallel} is greater than the count of the group, {}: a destructive change replaces all instances at once",
            group.count
        ));
    }
}

/// Says that canaries are promoted together, and so by hand if one group asks for that.
pub(super) fn check_promotion(path: &str, groups: &[TaskGroup], report: &mut Report) {
    let updates = || groups.iter().filter_map(|group| Some((group, group.update?)));
    let by_hand = updates().find(|(_, update)| update.canaries > 0 && !update.auto_promote);
    if let Some((group, _)) = by_hand.filter(|_| updates().any(|(_, update)| update.auto_promote)) {
        report.warning(format!(
            "{path}: auto_promote must be true for all groups to enable automatic promotion, it is false in {}",
            quoted(&group.name)
        ));
    }
}

/// Says what `checks` means until checks run. A strategy with all fields was made by a program,
/// which writes the default too.
pub(super) fn check_health(
    fields: &mut Fields<'_>,
    update: Option<UpdateStrategy>,
    has_checks: bool,
    report: &mut Report,
) {
    let Some(update) = update.filter(|update| update.health_check == HealthCheck::Checks) else {
        return;
    };
    let path = format!("{}.HealthCheck", fields.at("Update"));
    if has_checks && update.has_steps() {
        report.warning(format!(
            "{path}: checks are not run yet, \"checks\" counts the states of tasks until they are"
        ));
    } else if !has_checks && fields.value("Update").is_some_and(is_written) {
        report.warning(format!(
            "{path}: the group has no checks, \"checks\" counts the states of tasks"
        ));
    }
}

/// Whether a person wrote `checks` into this strategy.
fn is_written(value: &Value) -> bool {
    let has = |name: &str| value.get(name).is_some();
    has("HealthCheck") && !["AutoPromote", "Canary", "Stagger"].into_iter().all(has)
}

/// What a block says of health checks.
fn health_check(block: &mut Fields<'_>, report: &mut Report) -> Option<HealthCheck> {
    let path = block.at("HealthCheck");
    let word = block.text_filled("HealthCheck", report)?;
    let found = HealthCheck::parse(word);
    if found.is_none() {
        report.error(path, format!("{} is none of checks, task_states, manual", quoted(word)));
    }
    found
}

/// The migrate strategy of a job or group over what it inherits.
pub(super) fn migrate(
    fields: &mut Fields<'_>,
    inherited: &Inherited,
    report: &mut Report,
) -> MigrateStrategy {
    let base = inherited.migrate;
    let Some(value) = fields.value("Migrate") else { return base };
    let Some(mut block) = Fields::new(value, fields.at("Migrate"), report) else { return base };
    if inherited.kind != JobKind::Service {
        if !is_empty(value) {
            let kind = inherited.kind.name();
            let message =
                format!("only service jobs migrate, this one is {kind}: remove the block");
            report.error(block.path, message);
        }
        return base;
    }
    let strategy = MigrateStrategy {
        max_parallel: block.count("MaxParallel", 0, report).unwrap_or(base.max_parallel),
        healthy_ms_min: block.duration_ms("MinHealthyTime", report).unwrap_or(base.healthy_ms_min),
        healthy_deadline_ms: block
            .duration_ms("HealthyDeadline", report)
            .unwrap_or(base.healthy_deadline_ms),
    };
    let at_check = block.at("HealthCheck");
    if health_check(&mut block, report) == Some(HealthCheck::Manual) {
        report.error(at_check, "a migration has no person to ask: use \"task_states\"");
    }
    if strategy.healthy_ms_min >= strategy.healthy_deadline_ms {
        let message = format!(
            "must be shorter than HealthyDeadline ({}), is {}",
            show_ms(strategy.healthy_deadline_ms),
            show_ms(strategy.healthy_ms_min)
        );
        report.error(block.at("MinHealthyTime"), message);
    }
    block.finish(report);
    strategy
}
