package config

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever the text, Parse ends; what it accepts is JSON with sound resources;
// strictly it accepts no more; and places are in the text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", `{"":0}`, `{"a\n.b":{}}`, "{}{}", `{"resourceList":[{}]}`, selector(``), selector(`"pfNames":["eth0#0-3,5","eth0#x"],"isRdma":true`),
		resource(`,"deviceType":"auxNetDevice","selectors":{"auxTypes":["sf"]},"additionalInfo":{"*":{"a":"b"}}`),
		resource(`,"selectors":[{"vendors":"8086"}]`), selector(`"vendors":["8086"],"Vendors":null,"größe":1e9`),
		"{\n\"resourceList\":\n[{\"resourceName\":\"a\",\"resourcePrefix\":\"b.c\",\"selectors\":null,}]}",
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, strict bool) {
		c, warnings, err := Parse(text, Options{Strict: strict})
		lines := strings.Count(string(text), "\n") + 1
		for _, w := range warnings {
			if w.Line < 1 || w.Line > lines || w.Column < 1 || w.Path == "" || w.Text == "" || (strict && w.Kind.mistake()) {
				t.Errorf("warning %+v", w)
			}
		}
		again, _, errAgain := Parse(text, Options{Strict: strict})
		if diff := cmp.Diff(c, again); diff != "" || (err == nil) != (errAgain == nil) {
			t.Errorf("another result the second time: %v, %v\n%s", err, errAgain, diff)
		}
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Errorf("%q was accepted", text)
		}
		if lenient, _, err := Parse(text, Options{}); err != nil || cmp.Diff(c, lenient) != "" {
			t.Errorf("strictly accepted, but otherwise %v", err)
		}
		sound(t, c)
	})
}

func sound(t *testing.T, c Config) {
	names := map[string]bool{}
	for _, r := range c.Resources {
		if names[r.FullName()] || len(r.Selectors) == 0 || r.Name == "" || strings.ContainsAny(r.FullName(), " \x00") || strings.Contains(r.FullName(), "..") || strings.Count(r.FullName(), "/") != 1 {
			t.Errorf("resource %+v", r)
		}
		names[r.FullName()] = true
		for _, s := range r.Selectors {
			if s.RDMA && s.VDPAType != "" || r.Type == AuxNetDevice && len(s.AuxTypes) == 0 {
				t.Errorf("selector %+v", s)
			}
		}
	}
}

// An item means what its parts mean, one after the other up to the first that
// cannot be understood: told here once more, index by index.
func FuzzParseItem(f *testing.F) {
	for _, text := range []string{"eth0", "eth0#0-3,5", "#", "a#1,-", "a#9-1", "a#1#2", "0000:3b:00.1#+1,2-2", "a#--"} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, index int) {
		i, err := ParseItem(text)
		parts := strings.Split(text, "#")
		want, wantBad := len(parts) == 1, len(parts) > 2
		if len(parts) == 2 {
			for _, entry := range strings.Split(parts[1], ",") {
				ends := strings.Split(entry, "-")
				low, e1 := strconv.Atoi(ends[0])
				high, e2 := strconv.Atoi(ends[len(ends)-1])
				if len(ends) > 2 || e1 != nil || e2 != nil {
					wantBad = true
					break
				}
				want = want || low <= index && index <= high
			}
		}
		if i.Name != parts[0] || i.Has(index) != want || (err != nil) != wantBad {
			t.Errorf("ParseItem(%q) = %+v, %v; has %d: want %v, error: %v", text, i, err, index, want, wantBad)
		}
	})
}
