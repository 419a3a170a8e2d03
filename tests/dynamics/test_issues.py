import numpy as np
import pytest
from scipy.stats import rankdata

from calmix.dynamics import Dynamics, label_issues


def a_late_memoriser(rng, *, samples=3000, classes=4, flipped=0.1, epochs=4, skill=6.0):
    """Logits of a learner that finds the true classes first and learns wrong labels by heart at the end.

    Samples differ in difficulty, some of them resemble another class, and every look is noisy.
    """
    truth = rng.integers(classes, size=samples)
    wrong = rng.random(samples) < flipped
    given = np.where(wrong, (truth + rng.integers(1, classes, size=samples)) % classes, truth)
    evidence = rng.normal(size=(samples, classes))
    evidence[np.arange(samples), truth] += skill * rng.gamma(2.0, 0.5, size=samples)
    by_heart = np.eye(classes)[given] * rng.gamma(2.0, 0.5, size=(samples, 1))
    logits = [
        (1 - np.exp(-2 * t / epochs)) * evidence
        + 4 * (t / epochs) ** 3 * by_heart
        + rng.normal(scale=0.5, size=evidence.shape)
        for t in np.arange(1, epochs + 1)
    ]
    return np.stack(logits), given, truth, wrong


def auroc(score, positive):
    ranks = rankdata(score)
    return (ranks[positive].mean() - (positive.sum() + 1) / 2) / (~positive).sum()


def average_precision(score, positive):
    hits = positive[np.argsort(-score, kind="stable")]
    return (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("flipped", [0.1, 0.2])
def test_flipped_labels_rank_first_though_the_learner_ends_up_believing_them(classes, flipped):
    logits, given, truth, wrong = a_late_memoriser(np.random.default_rng(1), classes=classes, flipped=flipped)
    issues = label_issues(Dynamics.from_logits(logits, given))
    assert auroc(issues.score, wrong) > 0.93
    assert average_precision(issues.score, wrong) > 0.75
    # The last epoch alone, where wrong labels have been learnt by heart, is worse.
    last = Dynamics.from_logits(logits[-1:], given)
    assert average_precision(issues.score, wrong) > average_precision(label_issues(last).score, wrong) + 0.05
    assert (issues.suggested[wrong] == truth[wrong]).mean() > 0.8


def a_late_learner(rng, *, samples=3000, classes=4, flipped=0.1, epochs=3):
    """Logits of a learner that takes similar classes for each other until the end, and learns nothing by heart."""
    truth = rng.integers(classes, size=samples)
    wrong = rng.random(samples) < flipped
    given = np.where(wrong, truth ^ 1, truth)
    evidence = rng.normal(size=(samples, classes))
    evidence[np.arange(samples), truth] += 5 * rng.gamma(2.0, 0.5, size=samples)
    alike = np.eye(classes)[truth ^ 1] * evidence.max(1, keepdims=True)
    logits = [
        evidence * t / epochs + (1 - t / epochs) * alike + rng.normal(scale=0.5, size=evidence.shape)
        for t in np.arange(1, epochs + 1)
    ]
    return np.stack(logits), given, wrong


def test_a_model_that_tells_similar_classes_apart_late_is_believed_late():
    logits, given, wrong = a_late_learner(np.random.default_rng(2))
    dynamics = Dynamics.from_logits(logits, given)
    assert average_precision(label_issues(dynamics).score, wrong) > average_precision(dynamics.loss, wrong) + 0.1


def test_a_look_after_training_counts_as_the_last():
    logits, given, wrong = a_late_learner(np.random.default_rng(2))
    early = Dynamics.from_logits(logits[:2], given)
    looked = early.with_last_look(logits[2])
    assert average_precision(label_issues(looked).score, wrong) > average_precision(label_issues(early).score, wrong)
    assert looked.observations.tolist() == early.observations.tolist()
    assert looked.aum is early.aum


def test_the_flags_catch_most_and_are_mostly_right():
    logits, given, _, wrong = a_late_memoriser(np.random.default_rng(4))
    flagged = label_issues(Dynamics.from_logits(logits, given)).flagged
    assert (flagged & wrong).sum() > 0.6 * wrong.sum()
    assert (flagged & wrong).sum() > 0.6 * flagged.sum()


def test_clean_easy_data_has_no_flags():
    logits = np.tile(np.eye(3)[[0, 1, 2, 0]] * 5, (3, 1, 1))
    assert not label_issues(Dynamics.from_logits(logits, [0, 1, 2, 0])).flagged.any()


def test_by_hand():
    logits = np.log([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.1, 0.9]]])
    issues = label_issues(Dynamics.from_logits(logits, [0, 0], ids=("a", "b")))
    # The last look counts two thirds, the mean of both one: a geometric mean of the given label's probability.
    assert issues.score == pytest.approx([1 - 0.5 ** (1 / 6) * 0.9 ** (5 / 6), 1 - 0.2 ** (1 / 6) * 0.1 ** (5 / 6)])
    assert issues.suggested.tolist() == [1, 1]
    assert issues.sureness == pytest.approx([0.3, 0.85])
    assert issues.flagged.tolist() == [False, True]
    assert issues.order.tolist() == [1, 0]


def test_one_epoch_scores_by_its_loss():
    issues = label_issues(Dynamics.from_logits(np.log([[[0.25, 0.75]]]), [0]))
    assert issues.score == pytest.approx([0.75])


def test_a_class_that_is_never_sure_has_a_lower_bar():
    # Ten classes; samples of class 1 get 0.3 for it, and so does the first, labelled 0.
    probs = np.full((1, 5, 10), 0.7 / 9)
    probs[:, :, 1] = 0.3
    assert label_issues(Dynamics.from_logits(np.log(probs), [0, 1, 1, 1, 1])).flagged.tolist() == [True] + [False] * 4


def test_samples_that_cannot_be_judged_come_last_and_are_not_flagged():
    logits = np.array([[[np.nan, np.nan], [0.0, 3.0], [1.0, -np.inf], [3.0, 0.0]]])
    issues = label_issues(Dynamics.from_logits(logits, [0, 0, 0, 0]))
    assert issues.order.tolist() == [1, 3, 0, 2]
    assert np.isnan(issues.score[[0, 2]]).all()
    assert issues.suggested[[0, 2]].tolist() == [-1, -1]
    assert issues.flagged.tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_label_of_probability_0_is_the_most_suspicious(dtype):
    probs = np.array([[[0.1, 0.9], [0.0, 1.0], [1e-7, 1 - 1e-7], [0.9, 0.1], [1.0, 0.0]]])
    with np.errstate(divide="ignore"):
        logits = np.log(probs.astype(dtype))
    issues = label_issues(Dynamics.from_logits(logits, [0, 0, 0, 0, 0]))
    assert issues.order.tolist() == [1, 2, 0, 3, 4]
    assert issues.score[1] == pytest.approx(1, abs=1e-6)
    assert issues.suggested.tolist() == [1, 1, 1, 1, -1]
    assert issues.flagged.tolist() == [True, True, True, False, False]


def test_a_probability_of_0_is_one_observation_among_others():
    with np.errstate(divide="ignore"):
        logits = np.log([[[0.0, 1.0], [0.3, 0.7]], [[0.4, 0.6], [0.3, 0.7]]])
    dynamics = Dynamics.from_logits(logits, [0, 0])
    assert dynamics.observations.tolist() == [2, 2]
    assert dynamics.confidence == pytest.approx([0.2, 0.3])
    assert np.isfinite(dynamics.aum).all()
    assert label_issues(dynamics).order.tolist() == [0, 1]


def test_choices_that_a_row_does_not_have_are_neither_suggested_nor_judged():
    # Two of three choices, one of three, none that could be read.
    logits = np.array([[[0.0, 2.0, -np.inf], [1.0, -np.inf, -np.inf], [-np.inf, -np.inf, -np.inf]]] * 2)
    issues = label_issues(Dynamics.from_logits(logits, [0, 0, 0]))
    assert issues.suggested.tolist() == [1, -1, -1]
    assert np.isnan(issues.score).tolist() == [False, True, True]


def test_scores_stay_between_0_and_1_and_the_order_sees_past_their_rounding():
    logits = np.array([[[0.0, 5000.0], [0.0, 9000.0], [9000.0, 0.0]]])
    issues = label_issues(Dynamics.from_logits(logits, [0, 0, 0]))
    assert issues.score.tolist() == [1, 1, 0]
    assert issues.order.tolist() == [1, 0, 2]


def test_the_table_lists_suspects_by_rank_with_names():
    logits = np.array([[[2.0, 0.0], [0.0, 3.0], [np.nan, np.nan]]])
    dynamics = Dynamics.from_logits(logits, [0, 0, 1], ids=("a", "b", "c"), label_names=("ham", "spam"))
    rows = label_issues(dynamics).to_table().to_pylist()
    assert [row["id"] for row in rows] == ["b", "a", "c"]
    assert (rows[0]["label"], rows[0]["suggested"], rows[0]["flagged"]) == ("ham", "spam", True)
    assert (rows[2]["label"], rows[2]["suggested"], rows[2]["score"]) == ("spam", None, None)
    assert label_issues(dynamics).to_table(flagged_only=True)["id"].to_pylist() == ["b"]


def an_early_learner(*, sharpness, classes=30, rows=600, right=0.6, seed=0):
    """Dynamics of a network that takes the right class of most samples, more or less by a hair."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    said = np.where(rng.random(rows) < right, labels, (labels + rng.integers(1, classes, rows)) % classes)
    logits = [sharpness * epoch * np.eye(classes)[said] for epoch in (1, 2, 3)]
    return Dynamics.from_logits(np.stack(logits), labels)


def test_who_is_right_by_a_hair_may_doubt_no_label():
    issues = label_issues(an_early_learner(sharpness=0.1))
    assert not issues.flagged.any()
    assert "still sure of nothing" in issues.withheld
    # They are ranked all the same.
    assert np.isfinite(issues.score).all()
    sure = label_issues(an_early_learner(sharpness=3.0))
    assert sure.withheld == ""
    assert 0.3 < sure.flagged.mean() < 0.45


def test_who_knows_no_more_than_the_commonest_label_may_doubt_no_label():
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.3).astype(int)
    logits = np.tile([[1.0, 0.0]], (3, 500, 1)) + rng.normal(scale=0.3, size=(3, 500, 2))
    issues = label_issues(Dynamics.from_logits(logits, labels))
    assert "hardly learnt anything" in issues.withheld
    assert not issues.flagged.any()


def test_labels_of_which_two_in_five_are_wrong_do_not_silence_one_who_knows():
    logits, given, _, wrong = a_late_memoriser(np.random.default_rng(4), flipped=0.4)
    issues = label_issues(Dynamics.from_logits(logits, given))
    assert issues.withheld == ""
    assert (issues.flagged & wrong).sum() > 0.6 * issues.flagged.sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_has_learnt_late_may_doubt(seed):
    logits, given, _ = a_late_learner(np.random.default_rng(seed))
    assert label_issues(Dynamics.from_logits(logits, given)).withheld == ""


def test_of_one_class_or_a_handful_of_samples_nothing_can_be_told():
    assert label_issues(Dynamics.from_logits(np.zeros((2, 60, 3)), np.zeros(60, dtype=int))).withheld == ""
    assert label_issues(Dynamics.from_logits(np.zeros((2, 20, 3)), np.arange(20) % 3)).withheld == ""


def test_a_label_that_was_learnt_by_heart_is_found_by_heads_that_had_not_seen_it():
    logits = np.tile([[4.0, 0.0]] * 4, (3, 1, 1))
    dynamics = Dynamics.from_logits(logits, [0, 0, 0, 0], ids=("a", "b", "c", "d"))
    assert np.ptp(label_issues(dynamics).score) == 0
    issues = label_issues(dynamics.with_head([[2.0, 0.0], [0.0, 2.0], [np.nan, np.nan], [4.0, 0.0]]))
    assert [issues.ids[row] for row in issues.order] == ["b", "a", "c", "d"]


def test_heads_make_a_third_of_the_doubt():
    rng = np.random.default_rng(0)
    logits, labels, heads = rng.normal(size=(3, 5, 4)), rng.integers(0, 4, 5), rng.normal(size=(5, 4))
    dynamics = Dynamics.from_logits(logits, labels).with_head(heads)
    lost = (4 * dynamics.last_loss + 2 * dynamics.loss) / 9 + dynamics.head_loss / 3
    np.testing.assert_allclose(label_issues(dynamics).score, -np.expm1(-lost))
