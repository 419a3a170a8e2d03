"""Whether the models of a study can be trained as it asks, told before anything trains."""

from calmix.errors import InputError
from calmix.mixing import RECIPES, choose
from calmix.models import outline, resolve
from calmix.study.grid import Library, Plan, Spec
from calmix.study.working import Storage

__all__ = ["check_models"]


def check_models(plan: Plan, storage: Storage, library: Library) -> None:
    """Refuse a study with open runs that no training could make: of what is no model, or none for the task's data, or
    that is asked for layers which it has not, or of data without the paraphrases that a recipe needs.

    Runs that are finished or known to fail are not looked at, so that tables can be made where the models are not.
    """
    failed = storage.failed
    for group in plan.groups:
        if not all(storage.finished(spec.key) or spec.key in failed for spec in group):
            _check(group[0], library)


def _check(spec: Spec, library: Library) -> None:
    train = library.sets(spec.task, spec.seed).train
    network = outline(resolve(library.model(spec.model)), train.kind)
    if spec.recipe not in RECIPES:
        return
    recipe = choose(spec.recipe, spec.options)
    try:
        if network is not None:
            recipe.variants(network)
        if recipe.prepare is not None and not spec.options.get("there"):  # translating is left to the run
            recipe.prepare(train)
    except InputError as error:
        raise InputError(f"{library.where}: {spec.recipe} on {spec.task} with {spec.model}: {error}") from None
