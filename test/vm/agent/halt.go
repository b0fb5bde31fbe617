package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// halt takes the guest down as an init system does: processes end, file
// systems are unmounted, then the power goes.
func halt() {
	endProcesses(unix.SIGTERM, 10*time.Second)
	endProcesses(unix.SIGKILL, 5*time.Second)
	unmountAll()
	synced := make(chan struct{})
	go func() { unix.Sync(); close(synced) }() // a frozen file system holds it up for ever
	select {
	case <-synced:
	case <-time.After(20 * time.Second):
		fmt.Println("agent: sync did not end; the power goes without it")
	}
	powerOff()
}

// endProcesses signals everything but the agent and waits for its end.
func endProcesses(signal unix.Signal, bound time.Duration) {
	if err := unix.Kill(-1, signal); err != nil {
		return // nothing runs
	}
	deadline := time.After(bound)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := processes()
		if err != nil || len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			fmt.Println("agent: still running after", signal, left)
			return
		}
	}
}

// unmountAll unmounts what lies on block devices, the youngest first. What
// cannot be unmounted is made read-only, which writes everything out.
func unmountAll() {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		fmt.Println("agent: mounts:", err)
		return
	}
	defer f.Close()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && strings.HasPrefix(fields[0], "/dev/") {
			dirs = append(dirs, unescape.Replace(fields[1]))
		}
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		fmt.Println("agent: unmount:", dir, err)
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			fmt.Println("agent: remount read-only:", dir, err)
		}
	}
}

// unescape reads the octal escapes of the kernel's mount tables.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
