package spdktest

import (
	"encoding/json"
	"testing"
)

// Whatever is sent gets an answer of an error, or is a request whose
// parameters are taken by exact name and kind.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		getVersionText, `{}`, `[]`, `null`, `{"id":null,"method":"bdev_get_bdevs","params":{"name":"x"}}`, `{"id":{},"method":"x"}`,
		`{"id":1,"method":"bdev_get_bdevs","params":["x"]}`, `{"id":1,"method":"nvmf_create_subsystem","params":{"nqn":null}}`,
		`{"id":1,"method":"bdev_get_bdevs","params":{"timeout":1e99}}`, `{"id":-1.5,"method":7}`,
	} {
		f.Add([]byte(seed))
	}
	methods, _ := methodsOf(Config{SNAP: true, RBD: true})
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		r, fail := parse(text)
		if fail != nil {
			if fail.Error == nil || fail.Error.Code != -32600 || fail.ID == nil {
				t.Fatalf("%s: answer %+v", text, fail)
			}
			return
		}
		if r.method == "" {
			t.Fatalf("%s: a request without a method", text)
		}
		m := methods[r.method]
		a, ok := decode(r.params, m.takes)
		if !ok {
			if e := m.refusal(r.method); e.Code == 0 || e.Message == "" {
				t.Fatalf("%s: refused with %+v", text, e)
			}
			return
		}
		for name, value := range a {
			if k, known := m.takes.may[name]; !known || !k.fits(value) {
				t.Fatalf("%s: the parameter %s %s is taken", text, name, value)
			}
		}
		for _, name := range m.takes.need {
			if !a.has(name) {
				t.Fatalf("%s: %s is not there", text, name)
			}
		}
	})
}
