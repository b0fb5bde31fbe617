package volume_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func TestNewIDsAreSoundUniqueAndInOrder(t *testing.T) {
	makers := map[string]func() string{
		"vol-":   func() string { return string(volume.NewID("")) },
		"snap-":  func() string { return string(volume.NewSnapshotID("")) },
		"group-": func() string { return string(volume.NewGroupID("")) },
	}
	for prefix, make := range makers {
		var ids []string
		for range 5000 {
			id := make()
			if err := volume.CheckID(id); err != nil || !strings.HasPrefix(id, prefix) {
				t.Fatalf("id %q: %v", id, err)
			}
			ids = append(ids, id)
		}
		if !slices.IsSorted(ids) {
			t.Errorf("%s ids made later do not sort behind", prefix)
		}
		if len(slices.Compact(ids)) != 5000 {
			t.Errorf("%s ids come twice", prefix)
		}
	}
}

func TestCheckIDRefuses(t *testing.T) {
	for _, id := range []string{
		"", ".", "..", "../x", "a/b", "/a", "a\x00", "a b", " a", "-a", ".a", "_a", "a\n", "é", "a\\b", "%2e", "\xff", strings.Repeat("a", 129),
	} {
		if err := volume.CheckID(id); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("CheckID(%.40q) = %v, want an error of kind %q", id, err, errs.Invalid)
		}
	}
	if err := volume.CheckID(strings.Repeat("a", 128)); err != nil {
		t.Errorf("an id of 128 bytes: %v", err)
	}
	if err := volume.CheckID(strings.Repeat("/", 128)); len(err.Error()) > 250 {
		t.Errorf("a foreign id floods the message: %d bytes", len(err.Error()))
	}
}

// TestCheckedIDIsOnePathElement is what engines rely on when they join ids to
// paths.
func TestCheckedIDIsOnePathElement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9./_:\\-]{1,140}`)).Draw(t, "id")
		if volume.CheckID(id) != nil {
			return
		}
		if !filepath.IsLocal(id) || filepath.Base(id) != id || filepath.Clean(id) != id || len(id) > volume.MaxIDLength {
			t.Fatalf("CheckID admits %q", id)
		}
	})
}

func TestWhatIDsTell(t *testing.T) {
	const own, other = "7d1f5a52-3c77-4d43-8a1e-0123456789ab", "7d1f5a52-3c77-4d43-8a1e-ba9876543210"
	began := time.Now().Add(-time.Millisecond)
	for _, id := range []string{string(volume.NewID(own)), string(volume.NewSnapshotID(""))} {
		if at := volume.IDTime(id); at.Before(began) || at.After(time.Now()) {
			t.Errorf("IDTime(%q) = %v, want about %v", id, at, began)
		}
	}
	if at := volume.IDTime("vol-1"); !at.IsZero() {
		t.Errorf("IDTime of another id = %v", at)
	}
	for id, want := range map[string]bool{
		string(volume.NewID(own)):           false,
		string(volume.NewSnapshotID(own)):   false,
		string(volume.NewGroupID(own)):      false,
		string(volume.NewID(other)):         true,
		string(volume.NewSnapshotID(other)): true,
		string(volume.NewID("")):            true, // as releases before pools stood in ids made them
		string(volume.NewID(other)) + "0":   false,
		"vol-1":                             false,
		"":                                  false,
	} {
		if got := volume.MayBeInAnotherPool(id, own); got != want {
			t.Errorf("MayBeInAnotherPool(%q) = %v, want %v", id, got, want)
		}
	}
}
