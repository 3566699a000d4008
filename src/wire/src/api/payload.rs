//! What a client asked for, told from what servers add to it: a retry under the same id is the same
//! request, whatever they add then.

use fsm::{Command, Proposal, codec};

/// A hash of what a client asked for: the same for a retry, another for another request.
pub fn hash(command: &Command) -> u64 {
    let mut command = command.clone();
    command.clear_fresh();
    hash64(&codec::encode(&Proposal { at: 0, epoch: None, request: None, command }))
}

fn hash64(bytes: &[u8]) -> u64 {
    let hash = fsm::digest::row_hash(b"request", bytes).to_le_bytes();
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_has_the_hash_of_its_request_and_another_request_has_not() {
        let register = |count, now_s, id| {
            let spec = fsm::testing::job("web", fsm::JobKind::Service, count);
            let command = fsm::job::RegisterJob::new(spec.into(), fsm::EvaluationId([id; 16]));
            hash(&fsm::job::RegisterJob { now_s, ..command }.into())
        };
        assert_eq!(register(1, 1, 1), register(1, 2, 2), "the clock went on");
        assert_ne!(register(1, 1, 1), register(2, 1, 1));
    }
}
