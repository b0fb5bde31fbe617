package hostfs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
)

// HelperCommand is the hidden command that the plugin runs as a helper.
const HelperCommand = "dpu-mount"

const maxHelperRequest = 64 << 10

// RunHelper is the main function of a helper: a process that mounts or unmounts
// one network file system, and can be killed while it waits for the server. The
// process exits when stdin is closed, and must exit when RunHelper returns.
func RunHelper(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReaderSize(stdin, maxHelperRequest)
	line, err := in.ReadSlice('\n')
	var o helperRequest
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil || o.Target == "" {
		return errors.New("this command is internal to cleat; use mount and umount instead")
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // other threads can hang in the kernel
	}()
	// A process keyring belongs to the thread that created it.
	runtime.LockOSThread()
	var said []string
	say := func(text string) { said = append(said, text) }
	switch {
	case o.NFS != nil:
		err = o.NFS.execute(ctx, o.Target, say)
	case o.CephFS != nil:
		err = o.CephFS.execute(ctx, o.Target)
	case o.Unmount != nil:
		err = o.Unmount.execute(ctx, o.Target)
	default:
		err = errors.New("unknown request to the mount helper")
	}
	a := responseOf(err)
	a.Warnings = said
	return json.NewEncoder(stdout).Encode(a)
}
