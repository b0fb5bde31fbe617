package main

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/sriov/podresources"
)

func TestParsePod(t *testing.T) {
	for text, want := range map[string]podresources.Pod{"": {}, "a/b": {Namespace: "a", Name: "b"}, "kube-system/cleat.x-1": {Namespace: "kube-system", Name: "cleat.x-1"}} {
		if got, err := parsePod(text); err != nil || got != want {
			t.Errorf("%q is %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"/", "a", "a/", "/b", "a/b/c", "a.b/c", "A/b", "a/b\n", "$(POD_NAMESPACE)/$(POD_NAME)"} {
		if got, err := parsePod(text); err == nil || !strings.Contains(err.Error(), "is not NAMESPACE/NAME") {
			t.Errorf("%q is %+v (%v), want an error that says what is right", text, got, err)
		}
	}
}
