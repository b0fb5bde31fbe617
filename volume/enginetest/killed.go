package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// Call is one call of an engine, as JSON for a process that is killed.
type Call struct {
	Create   *volume.CreateRequest
	Expand   volume.ID // to Size
	Size     int64
	Modify   volume.ID // to Attributes
	Enforce  volume.ID
	Snapshot *volume.SnapshotRequest
	Unsnap   volume.SnapshotID
	Group    *volume.GroupRequest
	Ungroup  volume.GroupID
	Delete   volume.ID

	Attributes map[string]string
}

// Do makes the call.
func (c Call) Do(ctx context.Context, b volume.Backend) (err error) {
	switch {
	case c.Create != nil:
		_, err = b.Engine.Create(ctx, *c.Create)
	case c.Expand != "":
		_, err = b.Engine.Expand(ctx, c.Expand, volume.SizeRange{Required: c.Size})
	case c.Modify != "":
		_, err = b.Modifier.Modify(ctx, c.Modify, c.Attributes)
	case c.Enforce != "":
		err = b.Granter.Enforce(ctx, c.Enforce)
	case c.Snapshot != nil:
		_, err = b.Snapshots.CreateSnapshot(ctx, *c.Snapshot)
	case c.Unsnap != "":
		err = b.Snapshots.DeleteSnapshot(ctx, c.Unsnap)
	case c.Group != nil:
		_, err = b.Groups.CreateGroup(ctx, *c.Group)
	case c.Ungroup != "":
		err = b.Groups.DeleteGroup(ctx, c.Ungroup)
	default:
		err = b.Engine.Delete(ctx, c.Delete)
	}
	return err
}

// childEnvironment has the task of a child process, as JSON.
const childEnvironment = "CLEAT_ENGINE_TEST_CHILD"

// Child runs the task of Kill and exits, if this process is its child. TestMain
// calls it first.
func Child[T any](run func(ctx context.Context, task T) error) {
	text := os.Getenv(childEnvironment)
	if text == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	var task T
	err := json.Unmarshal([]byte(text), &task)
	if err == nil {
		err = run(ctx, task)
	}
	fmt.Fprintln(os.Stderr, errors.Join(err, errors.New("the crash point was not reached")))
	os.Exit(1)
}

// Kill runs a task in a child process of the test, which is killed at a crash
// point. It needs the build tag crashpoints.
func Kill(t *testing.T, task any, point string) {
	t.Helper()
	cmd := exec.CommandContext(testkit.Context(t), os.Args[0])
	cmd.Env = append(os.Environ(), childEnvironment+"="+string(testkit.Value(json.Marshal(task))(t)), "CLEAT_CRASHPOINT="+point+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || err.Error() != "signal: killed" {
		t.Fatalf("the child did not reach %s (these tests need the build tag crashpoints): %v: %s", point, err, out)
	}
}
