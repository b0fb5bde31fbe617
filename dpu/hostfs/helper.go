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

// HelperCommand is the hidden command by which a plugin starts a helper.
const HelperCommand = "dpu-mount"

// maxOrder bounds what a helper reads.
const maxOrder = 64 << 10

// RunHelper is the body of a helper: a process that mounts or unmounts one
// network file system, and may be killed while it waits for the server. stdin
// and stdout are its standard streams. The process ends when stdin does, and is
// to end when this returns.
func RunHelper(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReaderSize(stdin, maxOrder)
	line, err := in.ReadSlice('\n')
	var o order
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil || o.Target == "" {
		return errors.New("a helper of mounts is started by cleat itself and takes its orders from there; by hand use mount and umount")
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // nobody waits any more, and the other threads may hang
	}()
	// The keyring of a process belongs to the thread that made it.
	runtime.LockOSThread()
	var said []string
	say := func(text string) { said = append(said, text) }
	switch {
	case o.NFS != nil:
		err = o.NFS.carryOut(ctx, o.Target, say)
	case o.CephFS != nil:
		err = o.CephFS.carryOut(ctx, o.Target)
	case o.Unmount != nil:
		err = o.Unmount.carryOut(ctx, o.Target)
	default:
		err = errors.New("a helper of mounts got an order of a kind that it does not know")
	}
	a := answerOf(err)
	a.Said = said
	return json.NewEncoder(stdout).Encode(a)
}
