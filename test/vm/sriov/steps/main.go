// Command steps runs package sriov/host on the command line of a guest:
//
//	steps read                  print the machine's plan.State as JSON
//	steps do Bind '{"Address":"0000:01:10.0","Driver":"vfio-pci"}'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/plan"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := host.New(host.Config{})
	switch {
	case len(args) == 1 && args[0] == "read":
		s, err := h.Read(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(s)
	case len(args) == 3 && args[0] == "do":
		s, err := step(args[1], args[2])
		if err != nil {
			return err
		}
		return h.Do(ctx, s)
	}
	return fmt.Errorf("usage: steps read | steps do TYPE JSON")
}

func step(name, text string) (plan.Step, error) {
	for _, s := range []plan.Step{
		&plan.SetNumVFs{}, &plan.SetESwitch{}, &plan.SetMTU{}, &plan.SetUp{}, &plan.SetTCOffload{}, &plan.SetFlowSteering{}, &plan.SetMAC{}, &plan.SetGUID{},
		&plan.SetTrust{}, &plan.SetSpoofCheck{}, &plan.SetVLAN{}, &plan.SetRates{}, &plan.SetLinkState{},
		&plan.Bind{}, &plan.Unbind{}, &plan.SetVDPA{},
	} {
		v := reflect.ValueOf(s).Elem()
		if v.Type().Name() != name {
			continue
		}
		err := json.Unmarshal([]byte(text), s)
		return v.Interface().(plan.Step), err
	}
	return nil, fmt.Errorf("unknown step %q", name)
}
