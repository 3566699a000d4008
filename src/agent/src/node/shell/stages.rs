//! How a shell carries out what its machine asks for of stages, and tells it the result.

use std::{io, sync::Arc};

use futures_util::FutureExt;
use ground::rt::watch;

use super::{Happening, Shell};
use crate::{
    allocation::{preparation::AfterFailure, runner::StagePlace},
    stage::{StageContext, StageError},
    task::run::Fault,
};

/// The stages that are being prepared, with the channel that says that one is no longer wanted.
pub(super) type UnderWay = Vec<(Option<usize>, watch::Sender<bool>)>;

/// What was meant to be done of a stage, if its state cannot be stored first.
const NOT_STORED: &str = "cannot store the allocation's state";

impl Shell {
    /// Prepares a stage. `not_stored`: why the state could not be stored before, if it could not.
    pub(super) fn prepare(
        &mut self,
        (stage, task): StagePlace,
        again: bool,
        not_stored: Option<&io::Error>,
    ) {
        let entry = self.shared.stages.entry(stage);
        if let Some(error) = not_stored {
            let failed = (NOT_STORED, StageError::new(error));
            let failed = Happening::Prepared((stage, task), Err(failed));
            self.happenings.push(std::future::ready(failed).boxed());
            return;
        }
        let context = self.stage_context(task);
        let (abandon, mut abandoned) = watch::channel(false);
        self.under_way.push((task, abandon));
        let prepared = async move {
            let abandoned = async move {
                // An error means that the agent ends.
                if abandoned.wait_for(|abandoned| *abandoned).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let prepared = entry.stage.prepare(&context, again, abandoned.boxed()).await;
            Happening::Prepared((stage, task), prepared.map_err(|error| (entry.failure, error)))
        };
        self.happenings.push(prepared.boxed());
    }

    /// Tells the stage under way in this scope that it is no longer wanted.
    pub(super) fn abandon(&self, task: Option<usize>) {
        for (_, abandon) in self.under_way.iter().filter(|(of, _)| *of == task) {
            abandon.send_replace(true);
        }
    }

    /// Undoes a stage. `not_stored` as in [`Self::prepare`]: an agent that is killed after an undo
    /// must not find a state in which tasks may still run.
    pub(super) fn undo(&self, (stage, task): StagePlace, not_stored: Option<&io::Error>) {
        if let Some(error) = not_stored {
            let failed = Err(io::Error::new(error.kind(), format!("{NOT_STORED}: {error}")));
            let undone = Happening::Undone((stage, task), failed);
            self.happenings.push(std::future::ready(undone).boxed());
            return;
        }
        let undo =
            self.shared.stages.entry(stage).undo.expect("the machine undoes what has an undo");
        let context = self.stage_context(task);
        let undone = async move { Happening::Undone((stage, task), undo.undo(&context).await) };
        self.happenings.push(undone.boxed());
    }

    fn stage_context(&self, place: Option<usize>) -> StageContext {
        let (spec, directory) = (Arc::clone(&self.spec), self.directory.clone());
        StageContext { spec, directory, place }
    }

    /// Takes the result of a preparation.
    pub(super) fn take_prepared(
        &mut self,
        place: StagePlace,
        prepared: Result<(), (&'static str, StageError)>,
    ) {
        self.under_way.retain(|(task, _)| *task != place.1);
        let (what, error) = match prepared {
            Ok(()) => {
                let (runner, mut step) = self.step();
                runner.prepared(place, &mut step);
                return;
            }
            Err(failed) => failed,
        };
        if error.fault == Fault::Shortage {
            self.shared.shortages.met_as(&error.why);
        }
        let (runner, mut step) = self.step();
        let after = runner.prepare_failed(place, (what, &error.why, error.fault), &mut step);
        let (allocation, stage) = (self.spec.id, self.shared.stages.entry(place.0).name);
        match after {
            AfterFailure::Waits { is_news: true } => {
                tracing::warn!(%allocation, stage, %error, "an allocation is prepared later, because a stage failed for now");
            }
            AfterFailure::GoesOn => {
                tracing::warn!(%allocation, stage, %error, "cannot prepare a stage of a running allocation again");
            }
            AfterFailure::Failed => {
                tracing::debug!(%allocation, stage, %error, "cannot prepare an allocation");
            }
            AfterFailure::Waits { is_news: false } | AfterFailure::Abandoned => {}
        }
    }

    /// Takes the result of an undo.
    pub(super) fn take_undone(&mut self, place: StagePlace, undone: io::Result<()>) {
        let now = self.shared.clock.now();
        let Err(error) = undone else {
            let (runner, mut step) = self.step();
            return runner.undone(place, &mut step);
        };
        self.shared.shortages.met(&error);
        let failures = self.runner.undo_failed(place, now);
        // It may fail for as long as the machine lives.
        if failures.is_power_of_two() {
            let stage = self.shared.stages.entry(place.0).name;
            tracing::warn!(allocation = %self.spec.id, stage, failures, %error, "cannot undo what prepared an allocation, tries again");
        }
    }
}
