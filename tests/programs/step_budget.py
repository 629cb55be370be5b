import numpy as np
import tensorflow as tf

FLAGS = {"max_steps": 14, "log_every": 4, "batch": 16}


def input_fn():
	x = np.random.normal(size=(96, 5)).astype('float32')
	y = np.maximum(x[:, :1], x[:, 1:2])
	return tf.data.Dataset.from_tensor_slices((x, y)).batch(FLAGS["batch"])


def run():
	ds = input_fn()
	model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(10, 'relu'), tf.keras.layers.Dense(1)])
	opt = tf.keras.optimizers.Adam(0.02)
	global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
	passes = 0
	while int(global_step) < FLAGS["max_steps"]:  # <- epoch loop
		for features, labels in ds:  # <- batch loop
			if int(global_step) >= FLAGS["max_steps"]:
				break
			with tf.GradientTape() as tape:
				loss = tf.reduce_mean((model(features) - labels) ** 2)
			opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
			global_step.assign_add(1)
			if int(global_step) % FLAGS["log_every"] == 0:
				print('step', int(global_step), 'loss', float(loss))
		passes += 1
	print('passes over the data:', passes, 'final loss', float(loss))


run()
