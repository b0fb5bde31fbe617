package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
)

func newVolumeAttachCommand(f *driverFlags) *cobra.Command {
	var use useFlags
	var readOnly bool
	c := &cobra.Command{
		Use:   "attach VOLUME PATH",
		Short: "Mount a volume at a directory, or give its device a path",
		Long: `Makes a volume appear at a path: a mounted directory, or for a block volume a
device file. The path must not exist yet, or be an empty directory, which comes
back when the volume is detached.

The steps are those that the driver wants: publish to this node, stage, publish.
After a restart of the machine the same command mounts the volume again. One
volume can be attached at several paths if its access mode admits that.`,
		Example: `  cleat volume attach data /mnt
  cleat volume attach disk /dev/shm/disk --block
  cleat volume attach data /srv/read --read-only`,
		Args:              exactly("a VOLUME", "a PATH"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := filepath.Abs(args[1])
			if err != nil {
				return err
			}
			return f.run(cmd, "attaching volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				known, err := d.Show(ctx, args[0])
				if err != nil {
					return err
				}
				v, err := d.Attach(ctx, client.AttachRequest{
					Volume: args[0], Target: target, ReadOnly: readOnly, Capability: use.over(&known.Capability, cmd.Flags()),
				})
				if err != nil {
					return err
				}
				return f.say(cmd, v, "volume %s is attached at %s", v.Name, target)
			})
		},
	}
	use.add(c.Flags())
	c.Flags().BoolVar(&readOnly, "read-only", false, "no writes through this path")
	return c
}

func newVolumeDetachCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "detach VOLUME [PATH] | detach PATH",
		Short: "Take a volume away from its paths, or from one of them",
		Long: `Takes a volume away from a path, or from all paths of this machine when none is
given. With the last one it is unstaged and let go. It fails while a program
still uses files in it; nothing is forced.`,
		Example: `  cleat volume detach data
  cleat volume detach /mnt`,
		Args:              cobra.MatchAll(atLeast("a VOLUME or a PATH"), cobra.MaximumNArgs(2)),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := filepath.Abs(args[len(args)-1])
			if err != nil {
				return err
			}
			return f.run(cmd, "detaching "+args[0], func(ctx context.Context, d *client.Driver) error {
				if len(args) == 2 {
					return f.detach(ctx, cmd, d, args[0], path)
				}
				at, err := d.At(ctx, path)
				if strings.Contains(args[0], "/") && err == nil {
					return f.detach(ctx, cmd, d, at.ID, path) // after the detach only its id finds a foreign volume
				}
				if filepath.IsAbs(args[0]) {
					return err
				}
				return f.detach(ctx, cmd, d, args[0], "")
			})
		},
	}
}

func (f *driverFlags) detach(ctx context.Context, cmd *cobra.Command, d *client.Driver, name, path string) error {
	if err := d.Detach(ctx, name, path); err != nil {
		return err
	}
	v, err := d.Show(ctx, name)
	if err != nil {
		return err
	}
	if len(v.Targets) > 0 {
		return f.say(cmd, v, "volume %s is detached from %s and still attached at %s", v.Name, path, places(v))
	}
	return f.say(cmd, v, "volume %s is detached", v.Name)
}
