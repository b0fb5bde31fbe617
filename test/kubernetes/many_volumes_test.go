//go:build soak

package kubernetes

import (
	"fmt"
	"strings"
	"testing"
)

// A pod can have many volumes, each with its own device.
func TestManyVolumes(t *testing.T) {
	t.Parallel()
	const each = 5
	s := newVolumes(t)
	p := pod{mounts: map[string]string{}, devices: map[string]string{}}
	var write strings.Builder
	for i := range each {
		files, raw := fmt.Sprintf("files-%d", i), fmt.Sprintf("raw-%d", i)
		s.claim(files, claim{class: "local-ext4", size: "16Mi"})
		s.claim(raw, claim{class: "single-xfs", size: "4Mi", block: true})
		p.mounts["/"+files], p.devices["/dev/"+raw] = files, raw
		fmt.Fprintf(&write, "echo %s >/%[1]s/name; printf %%-4096s %s >/dev/%[2]s; ", files, raw)
	}
	s.run("many", p)
	s.exec("many", write.String()+"sync")
	used := map[string]string{}
	for i := range each {
		for _, name := range []string{fmt.Sprintf("files-%d", i), fmt.Sprintf("raw-%d", i)} {
			d := s.device(s.bound(name)).Path
			if other, ok := used[d]; ok {
				t.Errorf("%s is the device of %s and of %s", d, name, other)
			}
			used[d] = name
		}
	}
	s.drop("many")
	s.run("again", p)
	for i := range each {
		if got, want := s.exec("again", fmt.Sprintf("cat /files-%d/name; head -c 5 /dev/raw-%[1]d", i)), fmt.Sprintf("files-%d\nraw-%[1]d", i); got != want {
			t.Errorf("the pod reads %q, want %q", got, want)
		}
	}
}
