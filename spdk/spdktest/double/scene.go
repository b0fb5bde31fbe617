package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cleatproject/cleat/spdk/spdktest"
)

type scene struct {
	Subsystems []subsystem       `json:"subsystems"`
	Reach      map[address]reach `json:"reach"`
	Images     []spdktest.Image  `json:"images"`
	Faults     []fault           `json:"faults"`
}

type subsystem struct {
	NQN        string      `json:"nqn"`
	Addresses  []address   `json:"addresses"`
	Hosts      []string    `json:"hosts"` // empty: any host
	Namespaces []namespace `json:"namespaces"`
}

type namespace struct {
	NSID  uint32   `json:"nsid"`
	UUID  string   `json:"uuid"`
	NGUID string   `json:"nguid"`
	Bytes uint64   `json:"bytes"`
	After duration `json:"after"`
}

type fault struct {
	Method  string   `json:"method"`
	Name    string   `json:"name"`
	Skip    int      `json:"skip"`
	Times   int      `json:"times"`
	Wait    duration `json:"wait"`
	Instead action   `json:"instead"`
	Hold    duration `json:"hold"`
	Then    action   `json:"then"`
}

func (f fault) fault() spdktest.Fault {
	return spdktest.Fault{
		Method: f.Method, Name: f.Name, Skip: f.Skip, Times: f.Times, Wait: time.Duration(f.Wait),
		Instead: spdktest.Action(f.Instead), Hold: time.Duration(f.Hold), Then: spdktest.Action(f.Then),
	}
}

// address has the text format TRANSPORT,HOST,PORT.
type address spdktest.Address

func (a *address) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ",")
	if len(parts) != 3 {
		return fmt.Errorf("invalid address %q: use TRANSPORT,HOST,PORT, such as TCP,192.0.2.10,4420", text)
	}
	*a = address{Transport: parts[0], Host: parts[1], Port: parts[2]}
	return nil
}

type reach spdktest.Reach

func (r *reach) UnmarshalText(text []byte) error {
	i, err := one("reach", string(text), "open", "refused", "silent", "dropped")
	*r = reach(i)
	return err
}

type action spdktest.Action

func (a *action) UnmarshalText(text []byte) error {
	i, err := one("action", string(text), "answer", "drop", "silence", "kill", "restart")
	*a = action(i)
	return err
}

// one returns the index in words, which are in the order of their constants.
func one(what, word string, words ...string) (int, error) {
	for i, w := range words {
		if w == word {
			return i, nil
		}
	}
	return 0, fmt.Errorf("invalid %s %q: use one of %s", what, word, strings.Join(words, ", "))
}

type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// read returns an empty scene without a file.
func read(file string) (scene, error) {
	var s scene
	if file == "" {
		return s, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return s, err
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("scene %s: %w", file, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("scene %s: data after the JSON object", file)
	}
	return s, nil
}

func (s scene) set(n *spdktest.Network) error {
	const blockSize = 4096
	for _, sub := range s.Subsystems {
		if sub.NQN == "" || len(sub.Addresses) == 0 {
			return fmt.Errorf("subsystem %q: want an nqn and addresses", sub.NQN)
		}
		made := spdktest.Subsystem{NQN: sub.NQN, AnyHost: len(sub.Hosts) == 0, Hosts: sub.Hosts}
		for _, a := range sub.Addresses {
			made.Addresses = append(made.Addresses, spdktest.Address(a))
		}
		for _, ns := range sub.Namespaces {
			made.Namespaces = append(made.Namespaces, spdktest.Namespace{
				ID: ns.NSID, UUID: ns.UUID, NGUID: ns.NGUID, BlockSize: blockSize, Blocks: ns.Bytes / blockSize, After: time.Duration(ns.After),
			})
		}
		n.Put(made)
	}
	for a, r := range s.Reach {
		n.SetReach(spdktest.Address(a), spdktest.Reach(r))
	}
	for _, i := range s.Images {
		n.PutImage(i)
	}
	return nil
}
