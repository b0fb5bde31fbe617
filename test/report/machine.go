package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes the load, the memory and the disk of the last minute: most
// failures without a cause in their output have one here.
func machine() string {
	var facts []string
	var load float64
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if _, err := fmt.Sscan(string(text), &load); err == nil {
			facts = append(facts, fmt.Sprintf("load %.1f on %d processors", load, runtime.NumCPU()))
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		facts = append(facts, fmt.Sprintf("%.1f of %.1f GiB of memory available", kilobytes(text, "MemAvailable:")/(1<<20), kilobytes(text, "MemTotal:")/(1<<20)))
	}
	var st unix.Statfs_t
	if unix.Statfs(os.TempDir(), &st) == nil {
		facts = append(facts, fmt.Sprintf("%.1f GiB free below %s", float64(st.Bavail)*float64(st.Bsize)/(1<<30), os.TempDir()))
	}
	for _, resource := range []string{"cpu", "io", "memory"} { // Documentation/accounting/psi.rst; not in every kernel
		var stalled float64
		text, err := os.ReadFile("/proc/pressure/" + resource)
		if _, rest, ok := bytes.Cut(text, []byte("avg60=")); err == nil && ok {
			if _, err := fmt.Sscan(string(rest), &stalled); err == nil {
				facts = append(facts, fmt.Sprintf("%.0f %% of the last minute waited for %s", stalled, resource))
			}
		}
	}
	return strings.Join(facts, ", ")
}

func kilobytes(meminfo []byte, field string) (n float64) {
	_, rest, _ := bytes.Cut(meminfo, []byte(field))
	_, _ = fmt.Sscan(string(rest), &n)
	return n
}
