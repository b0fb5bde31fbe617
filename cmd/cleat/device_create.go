package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
)

func newDeviceCreateCommand() *cobra.Command {
	var f deviceAsk
	var contexts deviceContexts
	var mode, recorded string
	var modes []string
	c := &cobra.Command{
		Use:   "create VOLUME",
		Short: "Make the device of a volume, or get the one that is there",
		Long: `Does what the node driver does before it exposes a volume: asks the plugin who it
is, whether it is ready, whether it makes devices of that volume mode and in which
SNAP process, and calls CreateDevice. It prints the name of the device, which is a
bdev or a file system device of SNAP.

VOLUME is the volume_id, to the node driver the name of the PVC in the DPU
cluster. The contexts are what its plugin wants: to cleat dpu the keys of a CSI
driver's volume context. Keys of NVMe or Ceph themselves are refused: plugins log
and keep contexts.

A volume has one device. Repeat the command with the same modes and it prints the
same name; other modes are refused until the device is removed.`,
		Example: `  cleat device create pvc-1f0e --mode block --context targetType=tcp --context targetAddr=192.0.2.10 \
    --context targetPort=4420 --context nqn=nqn.2024-01.com.example:vol1
  cleat device create pvc-77aa --access-mode RWX --context server=192.0.2.11 --context share=/export/a
  cleat device create pvc-1f0e --mode block --from contexts.yaml -o json`,
		Args: exactly("VOLUME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := client.Create{Volume: args[0]}
			var err error
			if err = deviceArgs(cmd, args); err != nil {
				return err
			}
			if q.Mode, err = parseVolumeMode(mode); err != nil {
				return err
			}
			if q.Modes, err = parseAccessModes(modes); err != nil {
				return err
			}
			if q.Contexts, err = contexts.read(cmd.InOrStdin()); err != nil {
				return err
			}
			return f.run(cmd, "making the device", func(ctx context.Context, p devicePlugin) error {
				name, err := p.create(ctx, q, recorded)
				if err != nil {
					return err
				}
				return f.say(cmd, deviceName{q.Volume, name}, name)
			})
		},
	}
	f.add(c)
	contexts.add(c)
	c.Flags().StringVar(&mode, "mode", "filesystem", "block or filesystem: how the host is to see the volume (volume_mode)")
	c.Flags().StringSliceVar(&modes, "access-mode", []string{"RWO"}, "RWO, ROX, RWX or RWOP (access_modes); may be repeated")
	c.Flags().StringVar(&recorded, "device", "", "name that was answered before: when GetDevice finds that device it is kept and nothing is made, as the node driver does")
	cobra.CheckErr(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]cobra.Completion{"block", "filesystem"}, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(c.RegisterFlagCompletionFunc("access-mode", cobra.FixedCompletions([]cobra.Completion{"RWO", "ROX", "RWX", "RWOP"}, cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// create walks the steps of the node driver in its order.
func (p devicePlugin) create(ctx context.Context, q client.Create, recorded string) (name string, err error) {
	if err := p.prepare(ctx, q.Mode); err != nil {
		return "", err
	}
	if recorded != "" {
		_, err := p.Get(ctx, q.Volume, recorded)
		switch {
		case err == nil:
			return recorded, nil
		case status.Code(err) != codes.NotFound:
			return "", err
		}
	}
	if name, err = p.Create(ctx, q); err != nil {
		return "", err
	}
	if name == "" {
		return "", errs.Errorf(errs.Unavailable, "%s answered CreateDevice without a device_name: the node driver has nothing to expose then", p.Socket())
	}
	p.judge(name, q.Mode)
	return name, nil
}

// prepare asks what has to be known before a device is asked for.
func (p devicePlugin) prepare(ctx context.Context, mode request.Mode) error {
	info, err := p.Info(ctx)
	if err != nil {
		return err
	}
	ready, told, err := p.Probe(ctx)
	switch {
	case err != nil:
		return err
	case !told:
		return fmt.Errorf("nothing was made: plugin %s: %w", info.Name, errReadyUnset)
	case !ready:
		return errs.Errorf(errs.Unavailable, "nothing was made: plugin %s is not ready: it still starts, or does not reach SNAP; wait for it with: cleat device probe --wait 1m", info.Name)
	}
	can, err := p.Capabilities(ctx)
	if err != nil {
		return err
	}
	if mode == request.Block && !can.Block || mode == request.Filesystem && !can.Filesystem {
		return errs.Errorf(errs.Unsupported, "nothing was made: plugin %s makes no devices with volume mode %s; it announces %s", info.Name, mode, announced(can))
	}
	if _, err := p.Provider(ctx); err != nil {
		p.notice(err.Error() + "; the node driver goes on, with an empty name of the provider")
	}
	return nil
}

func announced(can client.Capabilities) string {
	if len(can.All) == 0 {
		return "nothing"
	}
	return strings.Join(can.All, ", ")
}

// Names that are longer do not fit what SNAP makes of them: the tag of a
// virtio-fs device, the NQN of a subsystem.
const (
	longestFsdev = 17
	longestBdev  = 190
)

// judge says when a device cannot be exposed under the name that it got.
func (p devicePlugin) judge(name string, mode request.Mode) {
	longest := longestFsdev
	if mode == request.Block {
		longest = longestBdev
	}
	if len(name) > longest {
		p.notice(fmt.Sprintf("the name of the device has %d characters; SNAP can expose those with at most %d", len(name), longest))
	}
}

// parseVolumeMode reads block or filesystem, in any case.
func parseVolumeMode(word string) (request.Mode, error) {
	for _, m := range []request.Mode{request.Block, request.Filesystem} {
		if strings.EqualFold(word, string(m)) {
			return m, nil
		}
	}
	return "", fmt.Errorf("--mode %q is not known: it is block or filesystem", word)
}

const accessModePrefix = "ACCESS_MODE_"

// parseAccessModes reads RWO and its like, in any case, each once.
func parseAccessModes(words []string) (modes []storagev1.AccessMode, err error) {
	for _, word := range words {
		n, known := storagev1.AccessMode_value[accessModePrefix+strings.ToUpper(word)]
		m := storagev1.AccessMode(n)
		if !known || m == storagev1.AccessMode_ACCESS_MODE_UNSPECIFIED {
			return nil, fmt.Errorf("--access-mode %q is not known: there are RWO (ReadWriteOnce), ROX (ReadOnlyMany), RWX (ReadWriteMany) and RWOP (ReadWriteOncePod)", word)
		}
		if !slices.Contains(modes, m) {
			modes = append(modes, m)
		}
	}
	return modes, nil
}
