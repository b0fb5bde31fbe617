package nodestate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever the text, Parse ends with a node state or with errors that say
// where; what it makes of a text is the same each time, and survives being
// written and read again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "{}", "[]", "spec:", "spec: {}", full, "spec: {}\n---\n", "a: &a [*a]", "spec: {interfaces: [{numVfs: 1e3, mtu: 0x10, name: ~}]}",
		"spec: {interfaces: [{vfGroups: [{vfRange: 0-3, trust: on}], numVFs: 3}]}", `{"spec":{"interfaces":[{"pciAddress":"0000:3b:00.0","numVfs":4}]}}`,
		"<<: {spec: {}}", "? [a]\n: b\nspec: {}", "metadata: {generation: 18446744073709551615}\nspec: {}", "spec: {bridges: {ovs: [{bridge: {a: .nan}}]}}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, warnings, err := Parse(text)
		for _, w := range warnings {
			if w.Path == "" || w.Text == "" || !strings.Contains(w.Text, "there is no key") {
				t.Errorf("warning %+v", w)
			}
		}
		again, _, errAgain := Parse(text)
		if diff := cmp.Diff(n, again); diff != "" || (err == nil) != (errAgain == nil) {
			t.Errorf("another result the second time: %v, %v\n%s", err, errAgain, diff)
		}
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Text == "" {
				t.Errorf("error %#v", err)
			}
			return
		}
		if n.Generation < 1 {
			t.Errorf("generation %d", n.Generation)
		}
		written, err := json.Marshal(map[string]any{"spec": n.Spec, "status": n.Status})
		if err != nil {
			t.Fatal(err)
		}
		back, warnings, err := Parse(written)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: warnings %v, error %v", written, warnings, err)
		}
		if back.Spec.Hash() != n.Spec.Hash() || n.Spec.Hash() != again.Spec.Hash() {
			t.Errorf("another hash after %s", written)
		}
		_ = n.Spec.Check()
	})
}

// A range is two numbers of digits; what is accepted writes itself.
func FuzzParseRange(f *testing.F) {
	for _, text := range []string{"0-3", "", "-", "3-0", "0-1,3", "65534-65534", "1-2-3", "+1-2"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			if r != (Range{}) {
				t.Errorf("%q: %v with %v", text, r, err)
			}
			return
		}
		if r.First < 0 || r.First > r.Last || r.Last > maxIndex || strings.Trim(text, "0123456789-") != "" || strings.Count(text, "-") != 1 {
			t.Errorf("%q: %v", text, r)
		}
		if again, err := ParseRange(r.String()); err != nil || again != r {
			t.Errorf("%q: %v, then %v, %v", text, r, again, err)
		}
		if !r.Has(r.First) || !r.Has(r.Last) || r.Has(r.Last+1) || r.Has(r.First-1) || !r.Overlaps(r) {
			t.Errorf("%v does not have its ends", r)
		}
	})
}
