package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
)

// Verbs and flags of the internode protocol that a submitter needs.
const (
	verbHello  = 0
	verbSubmit = 20

	flagReply  = 1
	flagError  = 2
	flagShared = 8

	protocolVersion = 1
	frameBytesMax   = 64 << 20
	// Length, its complement, CRC-32.
	headerBytes = 12
)

// packer appends MessagePack values.
type packer struct{ out []byte }

func (p *packer) array(size int) { p.out = append(p.out, 0x90|byte(size)) }

func (p *packer) uint(value uint64) {
	switch {
	case value < 128:
		p.out = append(p.out, byte(value))
	case value < 1<<16:
		p.out = append(p.out, 0xcd, byte(value>>8), byte(value))
	case value < 1<<32:
		p.out = binary.BigEndian.AppendUint32(append(p.out, 0xce), uint32(value))
	default:
		p.out = binary.BigEndian.AppendUint64(append(p.out, 0xcf), value)
	}
}

func (p *packer) bytes(value []byte) {
	p.out = binary.BigEndian.AppendUint32(append(p.out, 0xc6), uint32(len(value)))
	p.out = append(p.out, value...)
}

func (p *packer) text(value string) {
	p.out = binary.BigEndian.AppendUint16(append(p.out, 0xda), uint16(len(value)))
	p.out = append(p.out, value...)
}

// unpacker reads the MessagePack values that occur in replies.
type unpacker struct{ in []byte }

var errShort = errors.New("a message ends early")

func (u *unpacker) take(size int) ([]byte, error) {
	if size < 0 || len(u.in) < size {
		return nil, errShort
	}
	taken := u.in[:size]
	u.in = u.in[size:]
	return taken, nil
}

func (u *unpacker) sized(width int) (int, error) {
	raw, err := u.take(width)
	if err != nil {
		return 0, err
	}
	size := 0
	for _, one := range raw {
		size = size<<8 | int(one)
	}
	return size, nil
}

func (u *unpacker) uint() (uint64, error) {
	kind, err := u.take(1)
	if err != nil {
		return 0, err
	}
	if kind[0] < 128 {
		return uint64(kind[0]), nil
	}
	if kind[0] < 0xcc || kind[0] > 0xcf {
		return 0, fmt.Errorf("no unsigned integer: %x", kind[0])
	}
	value, err := u.sized(1 << (kind[0] - 0xcc))
	return uint64(value), err
}

func (u *unpacker) array() (int, error) {
	kind, err := u.take(1)
	if err != nil {
		return 0, err
	}
	switch {
	case kind[0]&0xf0 == 0x90:
		return int(kind[0] & 0x0f), nil
	case kind[0] == 0xdc:
		return u.sized(2)
	case kind[0] == 0xdd:
		return u.sized(4)
	}
	return 0, fmt.Errorf("no array: %x", kind[0])
}

func (u *unpacker) bytes() ([]byte, error) {
	kind, err := u.take(1)
	if err != nil {
		return nil, err
	}
	if kind[0] < 0xc4 || kind[0] > 0xc6 {
		return nil, fmt.Errorf("no byte string: %x", kind[0])
	}
	size, err := u.sized(1 << (kind[0] - 0xc4))
	if err != nil {
		return nil, err
	}
	return u.take(size)
}

func frame(verb, stream, epoch, flags uint64, body []byte) []byte {
	p := packer{out: make([]byte, headerBytes, 48+len(body))}
	p.array(5)
	p.uint(verb)
	p.uint(stream)
	p.uint(epoch)
	p.uint(flags)
	p.bytes(body)
	payload := p.out[headerBytes:]
	size := uint32(len(payload))
	binary.BigEndian.PutUint32(p.out, size)
	binary.BigEndian.PutUint32(p.out[4:], ^size)
	binary.BigEndian.PutUint32(p.out[8:], crc32.ChecksumIEEE(payload))
	return p.out
}

type envelope struct {
	verb, stream, epoch, flags uint64
	body                       []byte
}

func readEnvelope(in *bufio.Reader) (envelope, error) {
	var found envelope
	var head [headerBytes]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return found, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > frameBytesMax || size != ^binary.BigEndian.Uint32(head[4:]) {
		return found, fmt.Errorf("a frame of %d bytes", size)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(in, payload); err != nil {
		return found, err
	}
	if crc32.ChecksumIEEE(payload) != binary.BigEndian.Uint32(head[8:]) {
		return found, errors.New("a frame is damaged")
	}
	u := unpacker{payload}
	if _, err := u.array(); err != nil {
		return found, err
	}
	for _, field := range []*uint64{&found.verb, &found.stream, &found.epoch, &found.flags} {
		value, err := u.uint()
		if err != nil {
			return found, err
		}
		*field = value
	}
	body, err := u.bytes()
	found.body = body
	return found, err
}

// connect dials a node and introduces this process as a tool that listens nowhere.
func connect(address, cluster string) (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	p := packer{}
	p.array(9)
	p.uint(protocolVersion)
	p.text("")
	p.text(cluster)
	p.array(0)
	p.text("00000000-0000-4000-8000-00000000c11e")
	p.uint(0)
	p.text("127.0.9.9")
	p.uint(1)
	p.text("bench")
	if _, err := conn.Write(frame(verbHello, 0, 0, 0, p.out)); err != nil {
		return nil, nil, err
	}
	in := bufio.NewReaderSize(conn, 1<<16)
	reply, err := readEnvelope(in)
	if err != nil {
		return nil, nil, err
	}
	if reply.verb != verbHello || reply.flags&flagError != 0 {
		return nil, nil, fmt.Errorf("%s refuses the greeting: %q", address, reply.body)
	}
	return conn, in, nil
}
