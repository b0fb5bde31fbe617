package dputest

import (
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	contexts := func(testing.TB, string) Contexts { return Contexts{} }
	sound := Options{Socket: "/run/dpu.sock", Block: contexts}
	o, err := sound.complete()
	if err != nil || o.Devices != 8 || o.Timeout != 2*time.Minute || o.Patience != time.Second || len(o.AccessModes) != 1 {
		t.Errorf("the defaults are %+v, %v", o, err)
	}
	for word, change := range map[string]func(*Options){
		"Socket":     func(o *Options) { o.Socket = "" },
		"Filesystem": func(o *Options) { o.Block = nil },
		"Hold":       func(o *Options) { o.Parallel = true },
		"3 or more":  func(o *Options) { o.Devices = 2 },
		"negative":   func(o *Options) { o.Patience = -1 },
	} {
		o := sound
		change(&o)
		if _, err := o.complete(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%+v: %v, want an error with %q", o, err, word)
		}
	}
}

// DeviceParts are the tests of each kind of device.
func DeviceParts() []string {
	var names []string
	for _, p := range deviceParts() {
		names = append(names, p.name)
	}
	return names
}
