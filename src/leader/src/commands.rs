//! Commands of machines that wait to be proposed, one after the other.
//!
//! The queue is bounded: what finds no room is dropped, and its machine derives it again. A command
//! that waits already is not queued twice.

use std::collections::VecDeque;

use fsm::Command;

use crate::limits;

/// The queue.
#[derive(Default, Debug)]
pub(crate) struct CommandQueue(VecDeque<Command>);

impl CommandQueue {
    /// Queues a command; false when there is no room for it.
    pub(crate) fn push(&mut self, command: Command) -> bool {
        if self.0.contains(&command) {
            return true;
        }
        let has_room = self.0.len() < limits::SERVICE_COMMANDS_MAX;
        if has_room {
            self.0.push_back(command);
        }
        has_room
    }

    pub(crate) fn pop(&mut self) -> Option<Command> {
        self.0.pop_front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.0.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use fsm::{NodeId, node::EndSuspensions};

    use super::*;
    use fsm::upkeep::Tick;

    fn unsuspend(number: usize) -> Command {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Command::from(EndSuspensions { nodes: vec![NodeId(id)] })
    }

    #[test]
    fn a_command_that_waits_is_not_queued_twice() {
        let mut queue = CommandQueue::default();
        assert!(
            queue.push(unsuspend(1)) && queue.push(Command::from(Tick)) && queue.push(unsuspend(1))
        );
        assert_eq!(queue.pop(), Some(unsuspend(1)));
        assert!(queue.push(unsuspend(1)), "the first one waits no more");
        assert_eq!((queue.pop(), queue.pop()), (Some(Command::from(Tick)), Some(unsuspend(1))));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_full_queue_drops_what_is_new() {
        let mut queue = CommandQueue::default();
        for number in 0..limits::SERVICE_COMMANDS_MAX {
            assert!(queue.push(unsuspend(number)));
        }
        assert!(!queue.push(Command::from(Tick)));
        assert!(queue.push(unsuspend(7)), "it waits already");
        queue.pop();
        assert!(queue.push(Command::from(Tick)));
        assert_eq!(queue.iter().count(), limits::SERVICE_COMMANDS_MAX);
    }
}
