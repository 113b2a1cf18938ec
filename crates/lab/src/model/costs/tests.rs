//! That the loops do what they say; how long that takes is nobody's promise.

use super::*;

const TIME: Duration = Duration::from_millis(5);

fn two_cpus() -> Option<[usize; 2]> {
    match sheave_load::cpu::allowed()[..] {
        [first, second, ..] => Some([first, second]),
        _ => {
            sheave_testkit::skip("one CPU: nothing is handed over");
            None
        }
    }
}

#[test]
fn costs_are_times() {
    let Some(cpus) = two_cpus() else { return };
    let costs = LineCosts::measure(cpus, TIME).expect("measured");
    for ns in [costs.add_ns, costs.contended_add_ns, costs.hand_over_ns] {
        assert!(ns.is_finite() && ns > 0.0, "{costs:?}");
    }
    assert!(costs.moved_ns(Visit::Line { burst: 1 }) >= costs.hand_over_ns / 2.0);
    for shared in [Shared::line("", 1.0), Shared::line("", 1.0).burst(32), Shared::lock("", 1.0, 20.0)] {
        let cost = visit_cost(cpus, TIME, &costs, &shared, 50.0).expect("measured");
        assert!(cost.local_ns >= 0.0 && cost.moved_ns >= 0.0 && cost.hidden_ns.is_finite(), "{cost:?}");
    }
}

#[test]
fn a_loop_does_both_its_halves() {
    let subject = Subject::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(TIME);
            stop.store(true, Ordering::Relaxed);
        });
        let rounds = Loop { think: 3, visit: Body::Lock(2) }.rounds_per_ns(&subject, &stop);
        assert!(rounds > 0.0);
    });
    let locked = *subject.lock.0.lock().expect("free");
    assert!(locked > 0 && locked % 16 == 0 && subject.line.0.load(Ordering::Relaxed) == 0);
    // `stop` is set: it does not begin.
    Loop { think: 0, visit: Body::Adds(3) }.rounds_per_ns(&subject, &stop);
    assert_eq!(subject.line.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cpu_that_is_not_there_is_an_error() {
    assert!(Loop { think: 1, visit: Body::None }.run(&[4096], TIME).is_err());
}
