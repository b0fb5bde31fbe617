// Command suite is csi-sanity that also fills the protobuf size cache of every
// response. The suite compares a sent topology with a received one by
// reflect.DeepEqual; the sent one has its size cached, so without this the two
// are never equal ("should succeed when creating a snapshot with accessibility
// requirements", csi-test v5.6.0). It is a separate module so that the suite's
// dependencies do not raise the product's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// outcome receives Ginkgo's result.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func main() {
	config := sanity.NewTestConfig()
	flag.StringVar(&config.Address, "endpoint", "", "node and identity service, as unix:///…")
	flag.StringVar(&config.ControllerAddress, "controllerendpoint", "", "controller service, as unix:///…")
	flag.StringVar(&config.TargetPath, "mountdir", "", "directory that does not exist, for targets")
	flag.StringVar(&config.StagingPath, "stagingdir", "", "directory that does not exist, for staging")
	flag.StringVar(&config.TestVolumeAccessType, "accesstype", "mount", "mount or block")
	flag.Int64Var(&config.TestVolumeSize, "volumesize", 64<<20, "bytes")
	flag.Int64Var(&config.TestVolumeExpandSize, "expandsize", 128<<20, "bytes")
	config.TestVolumeMutableParameters = map[string]string{"readAheadKiB": "256", "trimInterval": "1h"}
	flag.Func("mutable", "the mutable parameter of volumes, as KEY=VALUE, instead of those of engine local", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%q is not KEY=VALUE", text)
		}
		config.TestVolumeMutableParameters = map[string]string{key: value}
		return nil
	})
	flag.Parse()
	if config.Address == "" || config.TargetPath == "" || config.StagingPath == "" {
		fmt.Fprintln(os.Stderr, "suite: --endpoint, --mountdir and --stagingdir are needed")
		os.Exit(2)
	}
	config.TestNodeVolumeAttachLimit = true
	fill := grpc.WithUnaryInterceptor(fillSizeCache)
	config.DialOptions = append(config.DialOptions, fill)
	config.ControllerDialOptions = append(config.ControllerDialOptions, fill)
	var o outcome
	sanity.Test(&o, config)
	if o.failed {
		os.Exit(1)
	}
}

func fillSizeCache(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, options...)
	if m, ok := reply.(proto.Message); ok && err == nil {
		proto.Size(m)
	}
	return err
}
