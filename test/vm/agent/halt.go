package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// halt shuts the guest down like an init system: it ends processes, unmounts
// file systems and powers off.
func halt() {
	endProcesses(unix.SIGTERM, 10*time.Second)
	endProcesses(unix.SIGKILL, 5*time.Second)
	releaseStorage()
	synced := make(chan struct{})
	go func() { unix.Sync(); close(synced) }() // sync blocks for ever on a frozen file system
	select {
	case <-synced:
	case <-time.After(20 * time.Second):
		fmt.Println("agent: sync timed out; powering off without it")
	}
	powerOff()
}

// endProcesses signals all processes except the agent and waits for their exit.
func endProcesses(signal unix.Signal, bound time.Duration) {
	if err := unix.Kill(-1, signal); err != nil {
		return // no process is left
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

// releaseStorage alternates between unmounting (newest first) and detaching loop
// devices, because each can keep the other busy. Busy mounts are remounted
// read-only, which flushes them.
func releaseStorage() {
	for turn := 0; ; turn++ {
		busy := unmountAll()
		detached := detachLoops()
		if len(busy) == 0 {
			return
		}
		if detached > 0 && turn < 10 {
			continue
		}
		for dir, err := range busy {
			fmt.Println("agent: unmount:", dir, err)
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				fmt.Println("agent: remount read-only:", dir, err)
			}
		}
		return
	}
}

// unmountAll returns the mounts that are still busy. Bind-mounted device nodes
// (block volumes) appear as devtmpfs mounts.
func unmountAll() map[string]error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return map[string]error{"/proc/self/mounts": err}
	}
	var dirs []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && (strings.HasPrefix(fields[0], "/dev/") || fields[2] == "devtmpfs" && fields[1] != "/dev") {
			dirs = append(dirs, unescape.Replace(fields[1]))
		}
	}
	slices.Reverse(dirs)
	busy := map[string]error{}
	for _, dir := range dirs {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			busy[dir] = err
		}
	}
	return busy
}

// detachLoops returns how many loop devices it detached.
func detachLoops() (detached int) {
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return 0
	}
	for _, dir := range bound {
		f, err := os.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(dir))))
		if err != nil {
			continue
		}
		if unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0) == nil {
			detached++
		}
		f.Close()
	}
	return detached
}

// unescape decodes the octal escapes in mount tables.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
