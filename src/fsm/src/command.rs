//! Commands: the only way state changes. A [`Proposal`] is what the log holds; a [`Reply`] is what
//! its proposer gets.
//!
//! Commands are sorted by noun: the noun's folder has their structs, and the one table of what is
//! known of them ([`commands`]).
//!
//! The number of a variant is its place, and a golden test pins every one. An unknown number does
//! not decode, and an entry that does not decode stops the server instead of being skipped.

use serde::{Deserialize, Serialize};

pub use crate::{
    allocation::AllocationCommand, capacity::CapacityCommand, deployment::DeploymentCommand,
    evaluation::EvaluationCommand, job::JobCommand, node::NodeCommand, plan::PlanCommand,
    pool::PoolCommand, settings::SettingsCommand, upkeep::UpkeepCommand,
};
use crate::{
    apply::{Outcome, Turn},
    id::{EvaluationId, Index, Text, TimeMs},
    plan::PlanVerdict,
    right::Right,
    session::Request,
};

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Log time, stamped by the leader.
    pub at: TimeMs,
    /// Leadership term, for commands of leader services: an entry that lands in another term is
    /// refused.
    pub epoch: Option<u64>,
    /// The client's request, for client commands.
    pub request: Option<Request>,
    pub command: Command,
}

/// Who may send a command through an edge. Each takes in those above it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Senders {
    /// Clients: the HTTP API, and writes over gRPC.
    Clients,
    /// Agents, by a service of their own.
    Agents,
    /// Servers that pass on what they were told, to the leader.
    Servers,
    /// Nobody: the leader's own services propose it, behind all edges.
    Leader,
}

/// Makes the enum of a noun's commands from its table, and all that is known of them. A row has, in
/// this order:
///
/// - the struct of the command, whose name is its wire name, and the method of [`Turn`] that
///   applies it;
/// - its [`Senders`];
/// - the [`Right`] that its sender needs: a variant, `[…]` for any of these capabilities in the
///   namespace of the job, or `(function)` of the command;
/// - `work` if it makes evaluations that wait for workers: refused while too many wait; `-` if not;
/// - the fields that servers fill in, and not who asks: a retry of the same request carries other
///   values. `evaluation` comes first, if there is one. Or `(method)` of the command that clears
///   them.
///
/// The number of a row is its place, which is in every log: raise the generation with each row.
macro_rules! commands {
    (
        $(#[$doc:meta])*
        $commands:ident in $noun:ident:
        $( $name:ident $method:ident $senders:ident $right:tt $work:tt $fresh:tt; )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
        pub enum $commands {
            $( $name($name), )*
        }

        $(
            impl From<$name> for $crate::Command {
                fn from(command: $name) -> Self {
                    Self::$noun($commands::$name(command))
                }
            }
        )*

        impl $commands {
            /// The names of all, in their order.
            #[cfg(test)]
            pub(crate) const NAMES: &[&str] = &[$( stringify!($name) ),*];

            pub(crate) fn apply(&self, turn: &mut $crate::apply::Turn<'_>) -> $crate::apply::Outcome {
                match self {
                    $( Self::$name(command) => turn.$method(command).into(), )*
                }
            }

            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $( Self::$name(_) => stringify!($name), )*
                }
            }

            pub(crate) fn senders(&self) -> $crate::command::Senders {
                match self {
                    $( Self::$name(_) => $crate::command::Senders::$senders, )*
                }
            }

            pub(crate) fn right(&self) -> $crate::right::Right {
                match self {
                    $( Self::$name(command) => $crate::command::commands!(@right command $right), )*
                }
            }

            pub(crate) fn makes_work(&self) -> bool {
                match self {
                    $( Self::$name(_) => $crate::command::commands!(@work $work), )*
                }
            }

            pub(crate) fn evaluation(&self) -> Option<$crate::EvaluationId> {
                match self {
                    $( Self::$name(command) => $crate::command::commands!(@evaluation command $fresh), )*
                }
            }

            pub(crate) fn clear_fresh(&mut self) {
                match self {
                    $( Self::$name(command) => $crate::command::commands!(@clear command $fresh), )*
                }
            }
        }
    };
    (@right $command:ident ($function:path)) => { $function($command) };
    (@right $command:ident [$($capability:ident)*]) => {{
        let _ = $command;
        $crate::right::Right::Namespace(&[$( $crate::right::Capability::$capability ),*])
    }};
    (@right $command:ident $right:ident) => {{
        let _ = $command;
        $crate::right::Right::$right
    }};
    (@work work) => { true };
    (@work -) => { false };
    (@evaluation $command:ident [evaluation $($field:ident)*]) => { Some($command.evaluation) };
    (@evaluation $command:ident $fresh:tt) => {{
        let _ = $command;
        None
    }};
    (@clear $command:ident ($function:path)) => { $function($command) };
    (@clear $command:ident []) => {{ let _ = $command; }};
    (@clear $command:ident [$($field:ident)*]) => {{ $( $command.$field = Default::default(); )* }};
}
pub(crate) use commands;

/// Makes [`Command`] from the list of nouns; what is known of a command is in the table of its
/// noun.
macro_rules! nouns {
    ($( $(#[$doc:meta])* $noun:ident($commands:ident), )*) => {
        /// A state change, by its noun. The tables are in the nouns' folders.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum Command {
            $( $(#[$doc])* $noun($commands), )*
        }

        impl Command {
            /// The names of all, by noun, in their order.
            #[cfg(test)]
            pub(crate) const NAMES: &[&[&str]] = &[$( $commands::NAMES ),*];

            pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Outcome {
                match self {
                    $( Self::$noun(command) => command.apply(turn), )*
                }
            }

            /// Its name in messages and in logs.
            pub fn name(&self) -> &'static str {
                match self {
                    $( Self::$noun(command) => command.name(), )*
                }
            }

            /// Who may send it through an edge.
            pub fn senders(&self) -> Senders {
                match self {
                    $( Self::$noun(command) => command.senders(), )*
                }
            }

            /// What right its sender needs. Nothing asks for it yet.
            pub fn right(&self) -> Right {
                match self {
                    $( Self::$noun(command) => command.right(), )*
                }
            }

            /// Whether it makes evaluations for workers, so that it is refused while too many wait.
            pub fn makes_work(&self) -> bool {
                match self {
                    $( Self::$noun(command) => command.makes_work(), )*
                }
            }

            /// The one evaluation that it makes, if it is a command that makes one.
            pub fn evaluation(&self) -> Option<EvaluationId> {
                match self {
                    $( Self::$noun(command) => command.evaluation(), )*
                }
            }

            /// Clears what servers add to what a client asked for, such as ids: what is left is the
            /// same for a retry of the request.
            pub fn clear_fresh(&mut self) {
                match self {
                    $( Self::$noun(command) => command.clear_fresh(), )*
                }
            }
        }
    };
}
nouns! {
    Job(JobCommand),
    Node(NodeCommand),
    Allocation(AllocationCommand),
    Evaluation(EvaluationCommand),
    Deployment(DeploymentCommand),
    Plan(PlanCommand),
    Pool(PoolCommand),
    Capacity(CapacityCommand),
    Settings(SettingsCommand),
    /// What the leader does for the log and the tables as a whole.
    Upkeep(UpkeepCommand),
}

/// Why a command changed nothing. The same on every replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// The entry landed in another leadership term.
    #[error("the command belongs to leadership term {expected}, the log is in term {found}")]
    StaleEpoch { expected: u64, found: u64 },
    /// The request is too old to know whether it was applied.
    #[error(
        "the request is older than the session window: its outcome is unknown, read before retrying"
    )]
    SessionExpired,
    /// The request id was used for something else.
    #[error("the idempotency key was used before for another request")]
    RequestIdReused,
    /// Compare-and-set failed. The text is Nomad's.
    #[error("Enforcing job modify index {asked}: {found}")]
    JobIndexConflict {
        /// Index that was asked for.
        asked: Index,
        found: IndexConflict,
    },
    /// No such thing.
    #[error("{what} not found")]
    NotFound {
        /// `job`, `node`, `alloc` …
        what: Text,
    },
    /// The thing is not as the command needs it.
    #[error("{0}")]
    Invalid(Text),
    /// Something still uses it.
    #[error("{0}")]
    InUse(Text),
    /// Registrations are turned off by the scheduler configuration.
    #[error("job registration is disabled by the scheduler configuration")]
    RegistrationDisabled,
    /// The secret is not that of the first registration.
    #[error("node secret does not match the one of the first registration")]
    SecretMismatch,
    /// The node's incarnation is another one.
    #[error("the report is from another incarnation of the node: register again")]
    StaleIncarnation,
    /// Compare-and-set of a configuration failed.
    #[error("the modify index is {found}, not {asked}")]
    IndexConflict {
        /// Index that was asked for.
        asked: Index,
        found: Index,
    },
    /// A source of requirements has said something newer.
    #[error(
        "source \"{name}\" has said something newer: epoch {epoch}, sequence {seq}; a lower epoch is \
         taken when that word has expired"
    )]
    StaleRequirements {
        /// Of the source.
        name: Text,
        /// The newest that is known.
        epoch: u64,
        seq: u64,
    },
}

/// What a job registration found instead of the index asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum IndexConflict {
    /// Asked for 0.
    #[error("job already exists")]
    Exists,
    /// Asked for an index.
    #[error("job does not exist")]
    Missing,
    /// Another index.
    #[error("job exists with conflicting job modify index: {0}")]
    Other(Index),
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Applied; nothing to say.
    Done,
    /// The command changed nothing.
    Rejected(Rejection),
    /// A job was registered, stopped or evaluated.
    Job {
        /// Its evaluation, if one was made.
        evaluation: Option<EvaluationId>,
        /// Modify index of the spec.
        job_modify_index: Index,
        /// The job was not there (a deregistration of an unknown job changes nothing and is no
        /// error).
        found: bool,
    },
    /// A node was changed.
    Node {
        incarnation: u64,
        modify_index: Index,
        /// Evaluations that were made.
        evaluations: Vec<EvaluationId>,
    },
    Evaluations(Vec<EvaluationId>),
    /// Plans were judged, in order.
    Plans(Vec<PlanVerdict>),
    /// So many rows were forgotten.
    Collected(u64),
    /// The words of several sources, in order; none: taken.
    Requirements(Vec<Option<Rejection>>),
    /// A deployment was changed.
    Deployment {
        /// Its job's evaluation, if one was made.
        evaluation: Option<EvaluationId>,
        /// The version that the job goes back to.
        reverted_to: Option<u64>,
    },
    /// Each dispatch was answered, in order; empty: it was, when the request came first.
    Dispatched(Vec<DispatchAnswer>),
}

impl Reply {
    /// The evaluations that were made; those of children are in the answers of their dispatches.
    pub fn evaluations(&self) -> &[EvaluationId] {
        match self {
            Self::Job { evaluation, .. } | Self::Deployment { evaluation, .. } => {
                evaluation.as_slice()
            }
            Self::Node { evaluations, .. } | Self::Evaluations(evaluations) => evaluations,
            Self::Done
            | Self::Rejected(_)
            | Self::Plans(_)
            | Self::Collected(_)
            | Self::Requirements(_)
            | Self::Dispatched(_) => &[],
        }
    }
}

/// What became of a dispatch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DispatchAnswer {
    /// There is a child for it.
    Child {
        /// What its id has after its parent's and a slash.
        name: Text,
        /// Its first evaluation; none: it waits, or was there before.
        evaluation: Option<EvaluationId>,
        create_index: Index,
        /// It was there before: the token is known.
        found: bool,
    },
    /// It made nothing.
    Refused(Rejection),
}

/// Transitions that cannot be refused give a reply.
impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Ok(reply)
    }
}
