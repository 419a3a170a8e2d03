import pytest
from PIL import Image

from calmix.data import read_examples
from calmix.data.imagefolders import IMAGE_ENDINGS, read_image_files, read_image_folder
from calmix.errors import CalmixWarning, InputError


@pytest.fixture
def folder(tmp_path):
    """A function that makes a folder of images from their paths."""

    def make(*paths):
        for value, path in enumerate(paths):
            file = tmp_path / "images" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (20 * value, 0, 0)).save(file)
        return tmp_path / "images"

    return make


def test_a_folder_for_each_class(folder):
    place = folder("dog/b.png", "cat/deep/c.PNG", "dog/a.png")
    examples = read_examples(place)
    assert examples.kind == "image"
    assert examples.source == str(place)
    assert examples.label_names == ("cat", "dog")
    assert examples.labels.tolist() == [0, 1, 1]
    assert [image[0, 0, 0] for image in examples.images] == [20, 40, 0]
    assert examples.column("image_from")[1] == str(place / "dog" / "a.png")
    assert examples.table["image"].null_count == 3


@pytest.mark.parametrize("ending", IMAGE_ENDINGS)
def test_every_ending(folder, ending):
    assert read_examples(folder(f"a/x{ending}", "b/x.png")).images[0].shape == (4, 4, 3)


def test_ids_stay_when_files_are_renamed(folder, tmp_path):
    before = read_examples(folder("a/x.png", "b/y.png"))
    (tmp_path / "images" / "a" / "x.png").rename(tmp_path / "images" / "a" / "z.png")
    after = read_examples(tmp_path / "images")
    assert after.ids == before.ids
    assert after.digest() == before.digest()


def test_splits(folder):
    place = folder("train/a/x.png", "train/b/x.png", "test/b/y.png")
    assert len(read_examples(place)) == 2
    test = read_examples(place, split="test", label_names=("a", "b"))
    assert test.labels.tolist() == [1]
    with pytest.raises(InputError, match="no folder 'dev' in it"):
        read_examples(place, split="dev")


@pytest.mark.parametrize("name", ["dev", "validation", "valid", "val"])
def test_a_dev_set_has_many_names(folder, name):
    place = folder("train/a/x.png", "train/b/x.png", f"{name}/b/y.png")
    assert len(read_examples(place, split="dev", label_names=("a", "b"))) == 1


def test_classes_may_be_called_like_splits(folder):
    assert read_examples(folder("train/x.png", "test/x.png")).label_names == ("test", "train")


def test_a_class_called_train_among_others(folder):
    assert read_examples(folder("train/deep/x.png", "car/x.png")).label_names == ("car", "train")


def test_an_unknown_class_is_refused(folder):
    with pytest.raises(InputError, match="unknown label 'b'"):
        read_examples(folder("a/x.png", "b/x.png"), label_names=("a", "c"))


def test_what_is_left_out_is_said(folder, tmp_path):
    place = folder("a/x.png", "b/x.png", ".old/a/x.png")
    (place / "a" / "notes.txt").write_text("x")
    (place / "b" / ".hidden.png").write_text("x")
    with pytest.warns(CalmixWarning, match="3 files or folders are left out.*'.old', 'a/notes.txt', 'b/.hidden.png'"):
        assert len(read_examples(place)) == 2


def test_loose_images_need_a_class_only_where_labels_are_needed(folder):
    place = folder("x.png", "b/x.png")
    with pytest.raises(InputError, match=r"x.png: is in no folder of a class"):
        read_examples(place)
    assert read_examples(place, labelled=False).labels.tolist() == [-1, -1]
    some = read_examples(place, labelled=None)
    assert (some.labels.tolist(), some.label_names) == ([-1, 0], ("b",))


def test_folders_without_images(folder, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="none: this is a folder without images; give a file"):
        read_examples(tmp_path / "none")
    place = folder("a/x.png")
    (place / "b").mkdir()
    with pytest.raises(InputError, match="b: there are no images in this folder"):
        read_examples(place)


def test_wrong_files_are_named_and_counted(folder):
    place = folder("a/x.png", "b/x.png")
    (place / "a" / "empty.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"empty.png: the image is empty .*out$"):
        read_examples(place)
    (place / "b" / "text.png").write_text("hello")
    with pytest.raises(InputError, match=r"empty.png: .* \(and 1 more files cannot be used\)$"):
        read_examples(place)


def test_an_image_cut_short_is_named_when_it_is_decoded(folder):
    place = folder("a/x.png", "b/x.png")
    data = (place / "a" / "x.png").read_bytes()
    (place / "a" / "x.png").write_bytes(data[:-25])
    with pytest.raises(InputError, match=r"x.png: the image is cut short or damaged"):
        read_examples(place).images[0]


def test_an_image_that_is_gone_when_it_is_needed_is_named(folder):
    place = folder("a/x.png", "b/x.png")
    examples = read_examples(place)
    (place / "a" / "x.png").unlink()
    with pytest.raises(InputError, match=r"x.png: cannot be read \(No such file or directory\)"):
        examples.images[0]
    assert examples.images[1].shape == (4, 4, 3)


def test_links_stay_inside(folder, tmp_path):
    place = folder("a/x.png", "b/x.png")
    (place / "a" / "again.png").symlink_to("x.png")
    assert len(read_examples(place)) == 3
    Image.new("RGB", (1, 1)).save(tmp_path / "secret.png")
    (place / "a" / "out.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(InputError, match=r"out.png: is a link that leads out"):
        read_examples(place)


@pytest.mark.parametrize("target", ["loop.png", "gone.png"])
def test_links_to_nowhere_are_named(folder, target):
    place = folder("a/x.png", "b/x.png")
    (place / "a" / "loop.png").symlink_to(target)
    with pytest.raises(InputError, match=r"loop.png: cannot be read"):
        read_examples(place)


def test_links_to_folders_are_refused(folder):
    place = folder("a/x.png", "b/x.png")
    (place / "c").symlink_to(place / "a")
    with pytest.raises(InputError, match="c: links to folders are not followed"):
        read_examples(place)


def test_a_link_to_the_folder_itself_is_followed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder("a/x.png", "b/x.png"))
    assert len(read_image_folder(tmp_path / "link")) == 2


def test_names_that_cannot_be_printed_are_refused(folder):
    place = folder("a/x.png", "b/x.png")
    (place / "a" / "x.png").rename(place / "a" / "x\n.png")
    with pytest.raises(InputError, match="characters that cannot be printed") as caught:
        read_examples(place)
    assert "\n" not in str(caught.value)


def test_a_folder_that_may_not_be_listed_is_named(folder, monkeypatch):
    place = folder("a/x.png")

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("calmix.data.imagefolders.os.scandir", refused)
    with pytest.raises(InputError, match=r"images: .*\(Permission denied\)"):
        read_examples(place)


def test_columns_mean_nothing_here(folder):
    with pytest.raises(InputError, match="images in files have no columns: leave out --label"):
        read_examples(folder("a/x.png"), label="kind")


def test_files_that_are_named_one_by_one_are_checked_as_those_of_a_folder_are(folder, tmp_path):
    place = folder("a/x.png", "b/y.png")
    (place / "b" / "y.png").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"y\.png: this is no PNG, JPEG, BMP, WebP or GIF image"):
        read_image_files([place / "a" / "x.png", place / "b" / "y.png"])
    with pytest.raises(InputError, match=r"'line\\nbreak\.png' has characters that cannot be printed"):
        read_image_files(["line\nbreak.png"])
