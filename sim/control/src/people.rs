//! Users: jobs come, change and go, nodes are drained and taken out of service. A command whose outcome is unknown is sent again under the same
//! request id.

mod jobs;
mod operators;

use std::sync::Arc;

use chance::Dice;
use fsm::{
    Command, Index, Job, JobKey, Reply, RequestId,
    allocation::Replacement,
    command::JobCommand,
    gc::{CollectGarbage, Cutoffs},
    job::{DeregisterJob, EvaluateJob, RegisterJob, ScaleJob},
    session::Request,
    testing,
};

use crate::cluster::{
    Cluster,
    log::{Fate, Ticket},
};

pub(crate) use self::jobs::ShapeJobs;

/// Operations whose outcome is not known.
const OPEN_MAX: usize = 3;

/// Jobs that only some seeds have.
const EXTRA_JOBS: [&str; 3] = ["once", "endless", "batch"];
/// A command on its way.
struct Operation {
    request: Request,
    command: Command,
    ticket: Option<Ticket>,
}

impl Operation {
    /// It leads to an evaluation of this job.
    fn is_about(&self, key: &JobKey) -> bool {
        if let Command::Job(JobCommand::RegisterJob(RegisterJob { spec, .. })) = &self.command {
            return spec.key == *key;
        }
        let Command::Job(
            JobCommand::DeregisterJob(DeregisterJob { job, .. })
            | JobCommand::EvaluateJob(EvaluateJob { job, .. }),
        ) = &self.command
        else {
            return false;
        };
        job == key
    }
}

/// Users and operators.
#[derive(Default)]
pub(crate) struct People {
    operations: Vec<Operation>,
}

impl People {
    /// How much is under way of what they asked for.
    pub(crate) fn open(&self) -> usize {
        self.operations.len()
    }

    /// What is under way leads to an evaluation of this job.
    pub(crate) fn see_to(&self, key: &JobKey) -> bool {
        self.operations.iter().any(|operation| operation.is_about(key))
    }

    /// Nobody asks again for these.
    pub(crate) fn forget(&mut self, is_one: impl Fn(&Command) -> bool) {
        self.operations.retain(|one| !is_one(&one.command));
    }
}

/// The cluster, and the people who want something of it.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) people: People,
}

impl World {
    /// Nobody has asked for anything yet.
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster, people: People::default() }
    }

    /// A user does something new, or looks after what is under way.
    pub(crate) fn use_it(&mut self, shapers: &mut dyn ShapeJobs, dice: &mut Dice) -> bool {
        if self.people.operations.len() >= OPEN_MAX || dice.percent(50) {
            return self.look_after(dice);
        }
        let command = self.draw_command(shapers, dice);
        self.ask(command);
        true
    }

    /// A user wants something.
    pub(crate) fn ask(&mut self, command: Command) {
        let payload_hash = testing::payload_hash(&command);
        let request = Request {
            id: RequestId(self.cluster.ids.next()),
            stamped_at: self.cluster.log.truth().at(),
            payload_hash,
        };
        self.people.operations.push(Operation { request, command, ticket: None });
    }

    /// Sends what was not sent, or whose outcome was lost; ends what was answered.
    pub(crate) fn look_after(&mut self, dice: &mut Dice) -> bool {
        if self.people.operations.is_empty() {
            return false;
        }
        let place = dice.index(self.people.operations.len());
        let operation = &self.people.operations[place];
        if let Some(ticket) = operation.ticket {
            match self.cluster.log.fate(ticket) {
                Fate::Open => return false,
                Fate::Committed(index) if !dice.percent(self.cluster.swarm.reply_loss) => {
                    let operation = self.people.operations.remove(place);
                    self.acknowledge(&operation, index);
                    return true;
                }
                Fate::Committed(_) | Fate::Lost => {}
            }
        }
        let (command, request) = (operation.command.clone(), operation.request);
        let ticket = self.cluster.propose_for_client(command, Some(request), dice);
        self.people.operations[place].ticket = ticket;
        ticket.is_some()
    }

    /// I18: what was acknowledged stays.
    fn acknowledge(&mut self, operation: &Operation, index: fsm::Index) {
        let applied = self.cluster.log.at(index);
        let gone = applied.and_then(|applied| {
            let Reply::Job { evaluation: Some(id), .. } = &applied.reply else { return None };
            (!applied.state.evaluations().contains(id)).then_some(*id)
        });
        // A retry may be answered after the collector came by.
        let first = applied.is_some_and(|applied| !applied.effects.is_empty());
        if let Some(id) = gone.filter(|_| first) {
            self.cluster.fail(format!("I18: evaluation {id} was acknowledged and is not there"));
        }
        let id = operation.request.id;
        self.cluster.trace(|| format!("request {id:?} was answered at {index}"));
    }

    fn draw_command(&mut self, shapers: &mut dyn ShapeJobs, dice: &mut Dice) -> Command {
        let evaluation = self.cluster.ids.evaluation();
        let name = format!("job{}", dice.index(self.cluster.swarm.jobs));
        let extra = self.cluster.swarm.extra_jobs && dice.percent(25);
        let name = if extra { dice.pick(&EXTRA_JOBS).unwrap_or("").to_owned() } else { name };
        let job = testing::job_key(&name);
        if self.cluster.swarm.bad_garbage && dice.percent(15) {
            return self.collect_everything();
        }
        let known = self.cluster.log.truth().jobs().get(&job).cloned();
        let choice = if known.is_none() { 0 } else { dice.below(20) };
        match choice {
            0..9 => {
                let again = known.as_ref().filter(|_| self.cluster.chance.percent(15));
                let was = again.and_then(|known| self.as_it_was(known));
                let spec = was.unwrap_or_else(|| self.draw_job(&name, shapers, dice));
                let enforce_index =
                    if dice.percent(15) { Some(draw_index(known.as_deref(), dice)) } else { None };
                let spec = Arc::new(spec);
                Command::from(RegisterJob { enforce_index, ..RegisterJob::new(spec, evaluation) })
            }
            9 | 10 => {
                let purge = self.cluster.swarm.operators && dice.percent(40);
                Command::from(DeregisterJob {
                    job,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                })
            }
            11 => {
                Command::from(EvaluateJob { job, force_reschedule: dice.percent(30), evaluation })
            }
            12 => Command::from(ScaleJob {
                job,
                group: fsm::testing::GROUP.into(),
                count: (!dice.percent(15)).then(|| u32::from(evaluation.0[1] % 6)),
                enforce_index: None,
                message: "drawn".into(),
                error: dice.percent(10),
                meta_json: "".into(),
                evaluation,
            }),
            13 | 14 => {
                let ids: Vec<_> =
                    self.cluster.log.truth().allocations_of_job(&job).map(|row| row.id).collect();
                match dice.pick(&ids) {
                    Some(id) => {
                        let all = [Replacement::ByKind, Replacement::Always, Replacement::Never];
                        let replacement = all[usize::from(evaluation.0[0]) % all.len()];
                        testing::stop_allocation(id, replacement, evaluation)
                    }
                    None => Command::from(EvaluateJob { job, force_reschedule: false, evaluation }),
                }
            }
            _ if self.cluster.swarm.operators => self.draw_operator(dice),
            _ => Command::from(EvaluateJob { job, force_reschedule: false, evaluation }),
        }
    }

    /// Names all there is, with the usual cut-offs: what is in use or too young must stay.
    fn collect_everything(&self) -> Command {
        let truth = self.cluster.log.truth();
        let (at, gc) = (truth.at(), &self.cluster.swarm.gc);
        Command::from(CollectGarbage {
            cutoffs: Cutoffs {
                evaluations: at.saturating_sub(gc.evaluation_ms),
                batch_evaluations: at.saturating_sub(gc.batch_evaluation_ms),
                jobs: at.saturating_sub(gc.job_ms),
                deployments: at.saturating_sub(gc.deployment_ms),
                children_max: gc.children_max,
            },
            jobs: truth.jobs().iter().map(|row| row.key.clone()).collect(),
            allocations: truth.allocations().iter().map(|row| row.id).collect(),
            evaluations: truth.evaluations().iter().map(|row| row.id).collect(),
            deployments: truth.deployments().iter().map(|row| row.id).collect(),
            classes: truth.nodes().iter().map(|row| row.class).collect(),
        })
    }
}

/// An index that a user believes the job to be of: right, near, or made up.
fn draw_index(job: Option<&Job>, dice: &mut Dice) -> Index {
    let (of_spec, of_row) = job.map_or((0, 0), |job| (job.job_modify_index, job.modify_index));
    dice.pick(&[of_spec, of_spec, of_row, of_spec + 1, 0]).unwrap_or(0)
}
