package request_test

import (
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

var volumes = rapid.StringMatching(`[A-Za-z0-9]([A-Za-z0-9_-]|\.[A-Za-z0-9]){0,100}[A-Za-z0-9]`)

// TestTokens: each volume has its own token, which stays valid when the volume
// is deleted.
func TestTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := volumes.Draw(t, "a"), volumes.Draw(t, "b")
		page, err := request.ParsePage(&storagev1.ListDevicesRequest{MaxEntries: 7, StartingToken: request.Token(a)})
		if err != nil || page != (request.Page{After: a, Max: 7}) {
			t.Fatalf("the token of %q gives %+v, %v", a, page, err)
		}
		if (request.Token(a) == request.Token(b)) != (a == b) {
			t.Fatalf("%q and %q have the tokens %q and %q", a, b, request.Token(a), request.Token(b))
		}
	})
}

// TestNoOtherTokens: only results of Token are accepted.
func TestNoOtherTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		near := []byte(request.Token(volumes.Draw(t, "volume")))
		at := rapid.IntRange(0, len(near)-1).Draw(t, "at")
		letter := rapid.OneOf(rapid.SampledFrom([]byte("\r\n=+/-_ AQgw")), rapid.Byte()).Draw(t, "letter")
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			near[at] = letter
		case 1:
			near = slices.Insert(near, at, letter)
		case 2:
			near = slices.Delete(near, at, at+1)
		case 3:
			near = rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "anything")
		}
		takenAsGiven(t, string(near))
	})
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func takenAsGiven(t failer, token string) {
	t.Helper()
	page, err := request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: token})
	switch {
	case err != nil && (!errors.Is(err, request.ErrToken) || errs.KindOf(err) != errs.Invalid || page != (request.Page{})):
		t.Fatalf("%q: %+v, %v", token, page, err)
	case err != nil && access.LooksSecret(err.Error()):
		t.Fatalf("a key is shown: %v", err)
	case err == nil && token != "" && request.Token(page.After) != token:
		t.Fatalf("%q is taken, but the token behind %q is %q", token, page.After, request.Token(page.After))
	}
}

// kept checks that an accepted request can be recorded: it has no secrets,
// survives encoding, and its volume is one element of a path.
func kept(t failer, c request.Create) {
	t.Helper()
	element(t, c.Volume)
	for _, m := range []kv{c.Contexts.Publish, c.Contexts.Volume, c.Contexts.Storage} {
		for k, v := range m {
			if access.LooksSecret(k) || access.LooksSecret(v) || !utf8.ValidString(k+v) {
				t.Fatalf("%q: %q is kept", k, v)
			}
		}
	}
	if c.Mode != request.Block && c.Mode != request.Filesystem {
		t.Fatalf("mode %q", c.Mode)
	}
	if !slices.IsSorted(c.Modes) || len(slices.Compact(slices.Clone(c.Modes))) != len(c.Modes) {
		t.Fatalf("access modes %v", c.Modes)
	}
	data, err := json.Marshal(c.Contexts)
	var again request.Contexts
	if err := errors.Join(err, json.Unmarshal(data, &again)); err != nil || !again.Equal(c.Contexts) {
		t.Fatalf("%+v comes back as %+v, %v", c.Contexts, again, err)
	}
}

func element(t failer, id string) {
	t.Helper()
	if id == "" || id == "." || id == ".." || len(id) > 255 || filepath.Base("/x/"+id) != id || !filepath.IsLocal(id) {
		t.Fatalf("volume %q is not one element of a path", id)
	}
}

// TestRetry: the order of a request does not matter.
func TestRetry(t *testing.T) {
	contexts := rapid.MapOfN(rapid.StringMatching(`x\.[a-zA-Z.]{1,9}`), rapid.StringMatching(`[a-z0-9 ]{0,9}`), 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		modes := rapid.SliceOf(rapid.SampledFrom([]storagev1.AccessMode{rwo, rox, rwx, rwop})).Draw(t, "modes")
		r := &storagev1.CreateDeviceRequest{
			VolumeId: volumes.Draw(t, "volume"), VolumeMode: rapid.SampledFrom([]string{"", "Block", "Filesystem"}).Draw(t, "mode"), AccessModes: modes,
			PublishContext: contexts.Draw(t, "publish"), VolumeContext: contexts.Draw(t, "context"), StorageParameters: contexts.Draw(t, "parameters"),
		}
		a := testkit.Value(request.ParseCreate(r))(t)
		kept(t, a)
		r.AccessModes = rapid.Permutation(append(modes, modes...)).Draw(t, "again")
		r.VolumeContext = maps.Clone(r.VolumeContext)
		b, err := request.ParseCreate(r)
		if err != nil || !slices.Equal(a.Modes, b.Modes) || !a.Contexts.Equal(b.Contexts) || a.Volume != b.Volume || a.Mode != b.Mode {
			t.Fatalf("%+v, then %+v, %v", a, b, err)
		}
	})
}
